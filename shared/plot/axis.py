"""One side of a chart: where values lie along it, and which of them are written there."""

from dataclasses import dataclass
from math import ceil, floor, log10

Point = tuple[float, float]
FEWEST_TICKS = 3
"""of a logarithmic axis; one within a few of a power of ten is ticked as an even one"""


@dataclass(frozen=True)
class Axis:
    """Values along one side."""

    label: str
    low: float
    high: float
    log: bool = False
    bare: bool = False
    """without ticks"""

    def share(self, value: float) -> float:
        """0 at the low end, 1 at the high end; what is outside is moved to the end."""
        if self.log:
            low, high, at = log10(self.low), log10(self.high), log10(max(value, self.low))
        else:
            low, high, at = self.low, self.high, value
        return min(max((at - low) / (high - low), 0.0), 1.0) if high > low else 0.0

    @property
    def ticks(self) -> list[float]:
        if self.bare:
            return []
        ticks = self._within(self._powers()) if self.log else []
        return ticks if len(ticks) >= FEWEST_TICKS else self._within(self._even())

    def _powers(self) -> list[float]:
        powers = range(floor(log10(self.low)), ceil(log10(self.high)) + 1)
        steps = (1, 2, 5) if len(powers) <= 4 else (1,)
        return [step * 10.0**power for power in powers for step in steps]

    def _even(self) -> list[float]:
        step = _nice((self.high - self.low) / 5)
        first, last = ceil(self.low / step), ceil(self.high / step)
        return [number * step for number in range(first, last + 1)]

    def _within(self, values: list[float]) -> list[float]:
        return [value for value in values if self.low <= value <= self.high * 1.0001]


def _nice(width: float) -> float:
    """1, 2 or 5 times a power of ten, close above `width`."""
    if width <= 0:
        return 1.0
    power = 10.0 ** floor(log10(width))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= width * 0.999)
