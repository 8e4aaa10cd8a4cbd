"""CHANGELOG.md tells of the version that this is, and what it speaks."""

import re
import tomllib

from shared.protocol import SPOKEN
from shared.state.keys import SHAPE
from tests.rules.sources import ROOT


def test_the_newest_section_is_of_this_version_and_says_what_it_speaks() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    with (ROOT / "pyproject.toml").open("rb") as file:
        version = tomllib.load(file)["project"]["version"]
    title, _, newest = sections[0].partition("\n")
    assert title == version
    assert f"Speaks {SPOKEN} of the protocol; shape {SHAPE} in Redis." in newest
