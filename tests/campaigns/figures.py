"""What a campaign measured, against what was wanted: a table, and PASS or FAIL for each line."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One measured value; `limits` is the wanted range, both ends included."""

    name: str
    value: float
    low: float = float("-inf")
    high: float = float("inf")
    unit: str = ""

    @property
    def met(self) -> bool:
        return self.low <= self.value <= self.high

    @property
    def wanted(self) -> str:
        if self.low == self.high:
            return f"{self.low:g}"
        ends = [f">= {self.low:g}"] if self.low > float("-inf") else []
        ends += [f"<= {self.high:g}"] if self.high < float("inf") else []
        return ", ".join(ends)

    def __str__(self) -> str:
        verdict = "PASS" if self.met else "FAIL"
        return f"{verdict}  {self.name}: {self.value:.5g} {self.unit}".rstrip() + (
            f", wanted {self.wanted}"
        )


def exactly(name: str, value: float, wanted: float = 0) -> Figure:
    return Figure(name, value, wanted, wanted)


def at_most(name: str, value: float, limit: float, unit: str = "") -> Figure:
    return Figure(name, value, high=limit, unit=unit)


def at_least(name: str, value: float, limit: float, unit: str = "") -> Figure:
    return Figure(name, value, low=limit, unit=unit)


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def judge(figures: Sequence[Figure]) -> int:
    """Every line; the exit status."""
    for figure in figures:
        say(str(figure))
    return 0 if all(figure.met for figure in figures) else 1


def quantile(values: Sequence[float], share: float) -> float:
    """0 of nothing."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0
