"""Both Dockerfiles as they are: they build, what they make is small, and a change of a source is
built in seconds.

`make image-test` runs this file first, and then scenarios in containers of these images.
"""

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.images.buildah import build, buildah, checkout, pip_mounts, said_inside, size_over_base
from tests.support.measured import Measured

LIMITS_MB = {"control": 200, "engine": 1200}
"""over the base; the engine's with a torch for CPUs"""
AGAIN_LIMIT_S = 20
TRIES = 2
"""of which the faster counts: others may use this machine"""
TAGS = ("one", "two")
"""of the revisions that scenarios roll out"""
CHANGED_FILE = "shared/release.py"

WITHOUT_A_HASH = """
import importlib.metadata, json, pathlib, sys
files = pathlib.Path(sys.prefix).glob("installed*.json")
found = [item for file in files for item in json.loads(file.read_text())["install"]]
hashed = {
    item["metadata"]["name"]
    for item in found
    if item["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
    or item["download_info"]["url"].startswith("file:")
}
there = {each.metadata["Name"] for each in importlib.metadata.distributions()}
sys.stdout.write(" ".join(sorted(there - hashed - {"baton-pd", "pip", "setuptools"})))
"""
"""prints the packages whose hash no report of pip has; the last two come with the environment, and
a file from a folder of this machine needs none"""


@pytest.mark.parametrize("name", ["control", "engine"])
def test_an_image(name: str, tmp_path: Path, measured: Measured) -> None:
    (tmp_path / "context").mkdir()
    context, mounts = checkout(tmp_path / "context"), pip_mounts(tmp_path)
    image = f"localhost/baton-{name}"
    first_s = build(context, name, mounts)
    measured.note(f"{name}: {first_s:.0f} s for what no earlier run had left")
    for tag in (release(context), *TAGS):
        buildah("tag", image, f"{image}:{tag}")
    measured.at_most(f"{name} over its base", size_over_base(image), LIMITS_MB[name], "MB")
    assert said_inside(image, "python", "-c", WITHOUT_A_HASH) == ""

    again_s = min(seconds_again(context, name, mounts) for _ in range(TRIES))
    buildah("tag", f"{image}:{TAGS[0]}", image)
    measured.at_most(f"{name} again after a change of one line", again_s, AGAIN_LIMIT_S, "s")


def seconds_again(context: Path, name: str, mounts: Sequence[str]) -> float:
    """A build after a new line in a source, which is in the image then."""
    mark = time.time_ns()
    with (context / CHANGED_FILE).open("a", encoding="utf-8") as file:
        file.write(f"CHANGED = {mark}\n")
    again_s = build(context, name, mounts)
    script = "from shared.release import CHANGED; import sys; sys.stdout.write(str(CHANGED))"
    assert said_inside(f"localhost/baton-{name}", "python", "-c", script) == str(mark)
    return again_s


def release(context: Path) -> str:
    """The tag that the chart names."""
    lines = (context / "helm" / "Chart.yaml").read_text(encoding="utf-8").splitlines()
    (version,) = (line.partition(":")[2] for line in lines if line.startswith("appVersion:"))
    return version.strip(' "')
