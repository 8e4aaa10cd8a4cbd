"""The tables of the READMEs that are made from the code: settings, the API's fields that are
accepted if neutral, and the files of a request's path.

`python -m tests.rules.readme_tables` rewrites them; a test keeps both equal.
"""

import json
import sys
from collections.abc import Callable, Iterator

from services.gateway.prompt.field_tables import IGNORED, NEUTRAL
from shared.settings.load import EVERY_SETTING
from shared.settings.setting import (
    NEVER_FLAGS,
    Setting,
    as_text,
    environment_name,
    flag_name,
    helm_name,
)
from tests.rules.sources import ROOT

TYPE_NAMES: dict[type, str] = {dict: "object", str: "string"}
NOTE = "written by `python -m tests.rules.readme_tables`"
PATH: dict[int, tuple[str, ...]] = {
    1: (
        "services/gateway/routes/generate.py",
        "services/gateway/prompt/prompt_reader.py",
    ),
    2: (
        "services/gateway/owner/door.py",
        "services/gateway/owner/requests.py",
        "services/gateway/owner/machine/request_machine.py",
    ),
    3: (
        "services/gateway/owner/placement/placer.py",
        "services/gateway/owner/placement/router.py",
    ),
    4: (
        "shared/worker/inbox.py",
        "services/prefill/service.py",
        "shared/worker/attempts/offers.py",
    ),
    5: (
        "shared/engine/engine.py",
        "shared/engine/scheduling/scheduler.py",
        "services/decode/service.py",
    ),
    6: (
        "shared/transfer/transport.py",
        "shared/transfer/pulls.py",
        "shared/transfer/pull.py",
    ),
    7: ("shared/engine/running/device_runner.py",),
    8: (
        "services/gateway/owner/frames.py",
        "services/gateway/owner/machine/sequencer.py",
        "shared/text/detokenizer.py",
        "services/gateway/answer/response.py",
        "services/gateway/answer/sse.py",
    ),
    9: ("services/gateway/owner/records/record_writer.py",),
}
"""step of a request's life -> files to read for it, each at the step where it is met first"""


def settings_table(readme: str) -> str:
    """The README of shared/ with today's settings."""
    head = ("flag", "variable", "Helm value", "default", "meaning")
    return _filled(readme, "settings", head, _settings_rows())


def neutral_table(readme: str) -> str:
    """The gateway's README with today's neutral fields."""
    return _filled(readme, "neutral fields", ("field", "accepted value"), _neutral_rows())


def path_table(readme: str) -> str:
    """The first README with today's lines of the files of PATH."""
    return _filled(readme, "path", ("step", "files and their lines"), _path_rows())


TABLES: dict[str, Callable[[str], str]] = {
    "README.md": path_table,
    "shared/README.md": settings_table,
    "services/gateway/README.md": neutral_table,
}
"""path of a README -> what puts today's table between its marks"""


def num_lines(path: str) -> int:
    return len((ROOT / path).read_text(encoding="utf-8").splitlines())


def _filled(readme: str, name: str, head: tuple[str, ...], rows: Iterator[str]) -> str:
    begin, end = f"<!-- {name}: {NOTE} -->\n", f"<!-- end of {name} -->\n"
    before, found, rest = readme.partition(begin)
    _, mark, after = rest.partition(end)
    assert found and mark, f"the README has lost its marks of {name}"
    top = "| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|\n"
    return f"{before}{begin}{top}{''.join(rows)}{end}{after}"


def _path_rows() -> Iterator[str]:
    for step, paths in PATH.items():
        yield f"| {step} | " + ", ".join(f"`{path}` {num_lines(path)}" for path in paths) + " |\n"
    every = [path for paths in PATH.values() for path in paths]
    yield f"| all | {len(every)} files, {sum(map(num_lines, every)):,} lines |\n"


def _neutral_rows() -> Iterator[str]:
    for name, values in sorted(NEUTRAL.items()):
        shown = ", ".join(f"`{json.dumps(value)}`" for value in values)
        yield f"| `{name}` | {shown or 'none'} |\n"
    for name, kind in sorted(IGNORED.items()):
        yield f"| `{name}` | any {TYPE_NAMES[kind]} |\n"


def _settings_rows() -> Iterator[str]:
    """Those that most people need first."""
    for item in sorted(EVERY_SETTING, key=lambda item: not item.common):
        cells = (
            "" if item.name in NEVER_FLAGS else f"`{flag_name(item.name)}`",
            f"`{environment_name(item.name)}`",
            f"`{helm_name(item.name)}`",
            _default(item),
            _meaning(item),
        )
        yield "| " + " | ".join(cells) + " |\n"


def _default(item: Setting) -> str:
    text = as_text(item.default)
    return f"`{text}`" if text else ""


def _meaning(item: Setting) -> str:
    text = item.help.replace("|", "\\|")
    if item.choices:
        text += f" ({', '.join(item.choices)})"
    if item.low is not None and item.high is not None:
        text += f" ({item.low:g} to {item.high:g})"
    elif item.low is not None:
        text += f" (at least {item.low:g})"
    return text


def main() -> int:
    for name, with_table in TABLES.items():
        path = ROOT / name
        path.write_text(with_table(path.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
