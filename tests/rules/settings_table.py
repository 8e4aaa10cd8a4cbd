"""The README's table of settings, made from shared/settings.

`python -m tests.rules.settings_table` rewrites it; a test keeps the two equal.
"""

import sys
from collections.abc import Iterator
from dataclasses import Field, fields
from typing import Any

from shared.settings import Settings, environment_name, flag_name, helm_name
from tests.rules.sources import ROOT

BEGIN = "<!-- settings: written by `python -m tests.rules.settings_table` -->\n"
END = "<!-- end of settings -->\n"


def render_table() -> str:
    head = "| flag | variable | Helm value | default | meaning |\n|---|---|---|---|---|\n"
    return head + "".join(_rows())


def with_table(readme: str) -> str:
    """The README with today's table between the marks."""
    before, _, rest = readme.partition(BEGIN)
    _, mark, after = rest.partition(END)
    assert mark, "the README has lost its marks"
    return f"{before}{BEGIN}{render_table()}{END}{after}"


def _rows() -> Iterator[str]:
    for item in fields(Settings):
        cells = (
            f"`{flag_name(item.name)}`",
            f"`{environment_name(item.name)}`",
            f"`{helm_name(item.name)}`",
            _default(item),
            _meaning(item),
        )
        yield "| " + " | ".join(cells) + " |\n"


def _default(item: "Field[Any]") -> str:
    if item.default == "":
        return ""
    return f"`{str(item.default).lower() if isinstance(item.default, bool) else item.default}`"


def _meaning(item: "Field[Any]") -> str:
    limits = item.metadata
    text = str(limits["help"]).replace("|", "\\|")
    if limits["choices"]:
        text += f" ({', '.join(limits['choices'])})"
    low, high = limits["low"], limits["high"]
    if low is not None and high is not None:
        text += f" ({low:g} to {high:g})"
    elif low is not None:
        text += f" (at least {low:g})"
    return text


def main() -> int:
    path = ROOT / "README.md"
    path.write_text(with_table(path.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
