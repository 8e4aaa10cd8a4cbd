"""A measured figure, its floor, and what others reach."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from services.cli.bench.engine.figures.known import Known

RATES = ("tok/s", "TFLOP/s", "GB/s")
"""units of which more is better"""


@dataclass(frozen=True)
class Check:
    """One thing that must hold for a figure to mean what it says."""

    name: str
    ok: bool | None
    """None: it does not apply, and `text` says why"""
    text: str

    def record(self) -> dict[str, Any]:
        return {"check": self.name, "ok": self.ok, "text": self.text}


@dataclass(frozen=True)
class Figure:
    """One cell of one table."""

    goal: str
    """the table it belongs to: P1, P2, P3 or P15"""
    model: str
    cell: str
    value: float
    unit: str
    text: str
    """what was run"""
    floor: float | None = None
    """in the same unit: nothing can be better on this device"""
    known: Known | None = None
    checks: tuple[Check, ...] = ()
    more: Mapping[str, float | int | str | None] = field(default_factory=dict)

    @property
    def failed(self) -> list[Check]:
        return [check for check in self.checks if check.ok is False]

    @property
    def ratio(self) -> float | None:
        """How many times as long as the floor it takes."""
        return None if self.floor is None else self._times_as_long(self.floor)

    @property
    def ahead(self) -> float | None:
        """How many times as long the rival takes."""
        return None if self.known is None else 1 / self._times_as_long(self.known.rival)

    @property
    def verdict(self) -> str:
        """missed, must, or how many of the bars beyond it are reached."""
        if self.known is None:
            return ""
        if self._times_as_long(self.known.must) > 1:
            return "missed"
        num_bars = sum(self._times_as_long(bar) <= 1 for bar in self.known.reach)
        return f"reach {num_bars} of {len(self.known.reach)}" if num_bars else "must"

    def record(self) -> dict[str, Any]:
        """Its JSON line."""
        known = self.known
        return {
            "kind": "figure",
            "goal": self.goal,
            "model": self.model,
            "cell": self.cell,
            "text": self.text,
            "value": _digits(self.value),
            "unit": self.unit,
            "floor": None if self.floor is None else _digits(self.floor),
            "ratio": None if self.ratio is None else round(self.ratio, 3),
            "rival": None if known is None else _digits(known.rival),
            "rival_name": None if known is None else known.name,
            "ahead": None if self.ahead is None else round(self.ahead, 3),
            "must": None if known is None else _digits(known.must),
            "reach": None if known is None else list(known.reach),
            "verdict": self.verdict or None,
            "checks": [check.record() for check in self.checks],
            **self.more,
        }

    def _times_as_long(self, other: float) -> float:
        """The time this figure stands for over the one that `other` does."""
        if not self.value or not other:
            return float("inf") if self.value > other else 1.0
        return other / self.value if self.unit in RATES else self.value / other


def render(figures: Sequence[Figure], rival: str) -> str:
    """A table; below it what the figures are, and each check that does not hold."""
    head = ("cell", "measured", "", "floor", "x floor", rival, "ahead", "reach", "", "checks")
    rows = [head, *map(_row, figures)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    left = (0, 2, 8, 9)
    lines = [
        "  ".join(
            cell.ljust(width) if at in left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    lines += [line for one in figures for line in _wrapped(f"{one.cell}: {one.text}")]
    lines += [
        line
        for one in figures
        for check in one.failed
        for line in _wrapped(f"{one.cell}: CHECK FAILED: {check.name}: {check.text}")
    ]
    return "\n".join(lines) + "\n"


def _row(figure: Figure) -> tuple[str, ...]:
    known = figure.known
    reach = "" if known is None else " / ".join(map(_shown, known.reach))
    num_applied = sum(check.ok is not None for check in figure.checks)
    checks = "FAILED" if figure.failed else f"{num_applied} ok" if num_applied else ""
    return (
        figure.cell,
        _shown(figure.value),
        figure.unit,
        "" if figure.floor is None else _shown(figure.floor),
        "" if figure.ratio is None else f"{figure.ratio:.2f}",
        "" if known is None else _shown(known.rival),
        "" if figure.ahead is None else f"{figure.ahead:.2f}x",
        reach,
        figure.verdict,
        checks,
    )


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 100, subsequent_indent="    ")


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _digits(value: float) -> float:
    """Enough of them to compute with."""
    return float(f"{value:.5g}")
