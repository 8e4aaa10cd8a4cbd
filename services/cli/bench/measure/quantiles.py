"""Quantiles by nearest rank: always a value that was measured, never one in between.

A quantile q needs 1 / (1 - q) values: with fewer, the largest value would pass for it. Such a
quantile is None.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, fsum

QUANTILES = (0.5, 0.9, 0.99, 0.999)
_SLACK = 1e-9
"""0.1 * 10 is a little more than 1 in floating point"""


def quantile_name(q: float) -> str:
    return f"p{q * 100:.4g}"


def quantile(ordered: Sequence[float], q: float) -> float | None:
    """Of sorted values; None where they are too few for it."""
    if len(ordered) * (1 - q) < 1 - _SLACK:
        return None
    return ordered[max(ceil(len(ordered) * q - _SLACK), 1) - 1]


@dataclass(frozen=True)
class Distribution:
    """What is said of many values."""

    ordered: tuple[float, ...]

    @classmethod
    def of(cls, values: Iterable[float]) -> "Distribution":
        return cls(tuple(sorted(values)))

    @property
    def n(self) -> int:
        return len(self.ordered)

    @property
    def mean(self) -> float | None:
        return fsum(self.ordered) / self.n if self.ordered else None

    @property
    def maximum(self) -> float | None:
        return self.ordered[-1] if self.ordered else None

    @property
    def tail(self) -> float:
        """p99, or the maximum of too few values; 0 of none."""
        p99 = self.at(0.99)
        return (self.maximum or 0.0) if p99 is None else p99

    def at(self, q: float) -> float | None:
        return quantile(self.ordered, q)

    def summary(self, scale: float = 1.0) -> dict[str, float | int | None]:
        """n, mean, the quantiles and the maximum; each value times `scale`."""
        values = {quantile_name(q): self.at(q) for q in QUANTILES}
        named = {"mean": self.mean, **values, "max": self.maximum}
        scaled = {key: _scaled(value, scale) for key, value in named.items()}
        return {"n": self.n, **scaled}


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else round(value * scale, 4)
