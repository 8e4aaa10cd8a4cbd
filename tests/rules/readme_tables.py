"""The README's tables that are made from the code: settings, and fields accepted if neutral.

`python -m tests.rules.readme_tables` rewrites them; a test keeps both equal.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import Field, fields
from typing import Any

from services.gateway.prompt.field_tables import IGNORED, NEUTRAL
from shared.settings import NEVER_FLAGS, Settings, environment_name, flag_name, helm_name
from tests.rules.sources import ROOT

TYPE_NAMES: dict[type, str] = {dict: "object", str: "string"}
NOTE = "written by `python -m tests.rules.readme_tables`"


def with_tables(readme: str) -> str:
    """The README with today's tables between their marks."""
    settings = ("flag", "variable", "Helm value", "default", "meaning")
    readme = _filled(readme, "settings", settings, _settings_rows())
    return _filled(readme, "neutral fields", ("field", "accepted value"), _neutral_rows())


def _filled(readme: str, name: str, head: tuple[str, ...], rows: Iterator[str]) -> str:
    begin, end = f"<!-- {name}: {NOTE} -->\n", f"<!-- end of {name} -->\n"
    before, found, rest = readme.partition(begin)
    _, mark, after = rest.partition(end)
    assert found and mark, f"the README has lost its marks of {name}"
    top = "| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|\n"
    return f"{before}{begin}{top}{''.join(rows)}{end}{after}"


def _neutral_rows() -> Iterator[str]:
    for name, values in sorted(NEUTRAL.items()):
        shown = ", ".join(f"`{json.dumps(value)}`" for value in values)
        yield f"| `{name}` | {shown or 'none'} |\n"
    for name, kind in sorted(IGNORED.items()):
        yield f"| `{name}` | any {TYPE_NAMES[kind]} |\n"


def _settings_rows() -> Iterator[str]:
    for item in fields(Settings):
        cells = (
            "" if item.name in NEVER_FLAGS else f"`{flag_name(item.name)}`",
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
    path.write_text(with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
