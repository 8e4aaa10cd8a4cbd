"""When requests come: seconds from the start of a run, endless, the same for the same seed.

Every process has the mean rate it is given. Burstiness is the shape of the gamma distribution of
the gaps: 1 is Poisson, below 1 the gaps vary more (their coefficient of variation is
1 / sqrt(burstiness)), above 1 less.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Literal

from shared.errors import SettingsError

ArrivalKind = Literal["poisson", "gamma", "onoff", "constant"]


@dataclass(frozen=True)
class Arrivals:
    """How requests come, at whatever rate."""

    kind: ArrivalKind = "poisson"
    burstiness: float = 1.0
    """gamma only"""
    on_s: float = 1.0
    off_s: float = 4.0
    """onoff only: Poisson for `on_s`, nothing for `off_s`; the mean rate is kept"""

    def __post_init__(self) -> None:
        if self.burstiness <= 0:
            raise SettingsError("--burstiness: more than 0; 1 is Poisson, 0.1 comes in bursts")
        if self.on_s <= 0 or self.off_s < 0:
            raise SettingsError("--on-s: more than 0; --off-s: 0 or more")

    @property
    def text(self) -> str:
        """For a person."""
        if self.kind == "gamma":
            return f"gamma arrivals (burstiness {self.burstiness:g})"
        if self.kind == "onoff":
            return f"on/off arrivals ({self.on_s:g} s / {self.off_s:g} s)"
        return f"{self.kind} arrivals"

    def times(self, rate: float, rng: random.Random) -> Iterator[float]:
        """Arrival times at `rate` per second on average."""
        if self.kind == "constant":
            return (number / rate for number in count())
        if self.kind == "gamma":
            return _gamma(rate, self.burstiness, rng)
        if self.kind == "onoff":
            return _on_off(rate, self.on_s, self.off_s, rng)
        return _gamma(rate, 1.0, rng)


def _gamma(rate: float, burstiness: float, rng: random.Random) -> Iterator[float]:
    at_s = 0.0
    while True:
        at_s += rng.gammavariate(burstiness, 1.0 / (rate * burstiness))
        yield at_s


def _on_off(rate: float, on_s: float, off_s: float, rng: random.Random) -> Iterator[float]:
    """Poisson in a time that stands still during the off phases."""
    rate_when_on = rate * (on_s + off_s) / on_s
    busy_s = 0.0
    while True:
        busy_s += rng.expovariate(rate_when_on)
        yield busy_s + int(busy_s / on_s) * off_s
