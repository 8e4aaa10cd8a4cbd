"""What one check found, and how findings are shown."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from services.cli.terminal import wrapped

Level = Literal["ok", "warn", "FAIL"]


@dataclass(frozen=True)
class Finding:
    """The judgement of one check. `FAIL`: it cannot serve so; `warn`: it can, but not well."""

    check: str
    level: Level
    seen: str
    cure: str = ""
    """what to do, in whole instructions; nothing where all is well"""

    def __post_init__(self) -> None:
        assert (self.level == "ok") == (not self.cure), "a fault has a cure, and nothing else has"

    def __str__(self) -> str:
        text = f"{self.level:4}  {self.check}: {self.seen}"
        return f"{text}; {self.cure}" if self.cure else text


def ok(check: str, seen: str) -> Finding:
    return Finding(check, "ok", seen)


def warn(check: str, seen: str, cure: str) -> Finding:
    return Finding(check, "warn", seen, cure)


def fail(check: str, seen: str, cure: str) -> Finding:
    return Finding(check, "FAIL", seen, cure)


def failed(check: str, error: Exception, cure: str) -> Finding:
    """Of an error whose text may say by itself, after its first semicolon, what to do; else
    `cure` does."""
    seen, _, said = " ".join(str(error).split()).partition("; ")
    return fail(check, seen, said or cure)


@dataclass(frozen=True)
class Section:
    """The findings on one subject: the machine, the model, a cell."""

    title: str
    findings: tuple[Finding, ...]


def render(sections: Iterable[Section], width: int | None = None) -> str:
    """A heading per section and a line per finding, wrapped where the terminal is narrower; the
    last line counts."""
    found = list(sections)
    lines = []
    for section in found:
        lines.append(wrapped(section.title, width))
        lines += [wrapped(f"  {finding}", width, indent=8) for finding in section.findings]
    lines.append(wrapped(_count(found), width))
    return "\n".join(lines) + "\n"


def json_lines(sections: Iterable[Section]) -> str:
    """A line per finding: section, check, level, seen, cure."""
    return "".join(
        json.dumps({"section": section.title, **asdict(finding)}) + "\n"
        for section in sections
        for finding in section.findings
    )


def exit_code(sections: Iterable[Section]) -> int:
    """1 if anything fails."""
    levels = {finding.level for section in sections for finding in section.findings}
    return 1 if "FAIL" in levels else 0


def _count(sections: Sequence[Section]) -> str:
    levels = [finding.level for section in sections for finding in section.findings]
    if set(levels) <= {"ok"}:
        return f"all {len(levels)} checks are ok"
    return f"{levels.count('FAIL')} FAIL, {levels.count('warn')} warn of {len(levels)} checks"
