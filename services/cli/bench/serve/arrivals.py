"""When requests come: seconds from the start of a run, the same for the same seed.

A run has the rate it is given, not only on average over many runs. Burstiness is the shape of the
gamma distribution of the gaps: 1 is Poisson, below 1 the gaps vary more (their coefficient of
variation is 1 / sqrt(burstiness)), above 1 less.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import fsum
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
    """onoff only: Poisson for `on_s`, nothing for `off_s`; the rate of the run is kept"""

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

    def times(self, num: int, span_s: float, rng: random.Random) -> list[float]:
        """`num` arrival times in a run of `span_s`.

        Gaps are drawn, then scaled so that the next arrival falls on the end of the run: their
        shape is kept, and the rate offered is exactly `num / span_s`. (Poisson arrivals of which
        the number is known are such.)
        """
        if self.kind == "constant":
            return [number * span_s / num for number in range(num)]
        if self.kind == "onoff":
            busy_s = _scaled(_gaps(1.0, num, rng), self._busy_s(span_s))
            return [at_s + int(at_s / self.on_s) * self.off_s for at_s in busy_s]
        shape = self.burstiness if self.kind == "gamma" else 1.0
        return _scaled(_gaps(shape, num, rng), span_s)

    def _busy_s(self, span_s: float) -> float:
        """The time within a run that is not an off phase."""
        num_cycles, rest_s = divmod(span_s, self.on_s + self.off_s)
        return num_cycles * self.on_s + min(rest_s, self.on_s)


def _gaps(shape: float, num: int, rng: random.Random) -> list[float]:
    """Before each of `num` arrivals, and after the last."""
    return [rng.gammavariate(shape, 1.0) for _ in range(num + 1)]


def _scaled(gaps: Sequence[float], span_s: float) -> list[float]:
    """The times between gaps that fill `span_s`."""
    scale = span_s / fsum(gaps)
    return [at * scale for at in accumulate(gaps[:-1])]
