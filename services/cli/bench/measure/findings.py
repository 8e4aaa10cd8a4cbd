"""Figures with their goals."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Finding:
    """One figure."""

    part: str
    """of the benchmark"""
    name: str
    value: float
    unit: str
    goal: float | None = None
    """None: shown, not judged"""
    better: Literal["<=", ">="] = "<="
    n: int = 0
    note: str = ""
    invalid: str = ""
    """why something else was measured; empty if it was not"""

    @property
    def met(self) -> bool | None:
        if self.goal is None or self.invalid:
            return None
        return self.value <= self.goal if self.better == "<=" else self.value >= self.goal

    def record(self) -> dict[str, Any]:
        """Its JSON line."""
        return {
            "kind": "figure",
            "part": self.part,
            "name": self.name,
            "value": round(self.value, 4),
            "unit": self.unit,
            "goal": None if self.goal is None else f"{self.better} {self.goal:g}",
            "met": self.met,
            "invalid": self.invalid or None,
            "n": self.n,
            "note": self.note,
        }


def faults(findings: Sequence[Finding], *, strict: bool) -> list[str]:
    """Why they may not be relied on: those that are INVALID, with `strict` also missed goals."""
    invalid = [one.name.strip() for one in findings if one.invalid]
    missed = [one.name.strip() for one in findings if one.met is False]
    found = []
    if invalid:
        found.append(f"INVALID, measure again on a quiet machine: {', '.join(invalid)}")
    if missed and strict:
        found.append(f"missed: {', '.join(missed)}")
    return found


def render(findings: Sequence[Finding]) -> str:
    """A table; notes below it."""
    rows = [("part", "figure", "value", "", "goal", "", "n")]
    notes = []
    for one in findings:
        mark = ""
        text = "; ".join(filter(None, (one.invalid and f"INVALID: {one.invalid}", one.note)))
        if text and text not in notes:
            notes.append(text)
        if text:
            mark = f" [{notes.index(text) + 1}]"
        goal = "" if one.goal is None else f"{one.better} {one.goal:g}"
        verdict = {None: "", True: "met", False: "MISSED"}[one.met]
        if one.invalid:
            verdict = "INVALID"
        value = f"{one.value:,.0f}" if abs(one.value) >= 1000 else f"{one.value:.4g}"
        rows.append((one.part, one.name + mark, value, one.unit, goal, verdict, f"{one.n}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    right = (2, 4, 6)
    lines = [
        "  ".join(
            cell.rjust(width) if at in right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    lines += [f"[{number}] {note}" for number, note in enumerate(notes, start=1)]
    return "\n".join(lines) + "\n"
