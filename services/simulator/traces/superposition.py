"""Many copies of a trace at once, each shifted in time, under a day's swing.

A recorded hour loads a fraction of one worker. Slower workers would stretch its bursts until no
policy could serve them, so the load is raised as a provider's grows: by more users. Copies begin at
random places of the trace and go round. The swing thins them: at the height of the day all arrive,
and `1 - swing` of them at its depth.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import pi, sin

from services.autoscaler.view import Arrival
from services.simulator.traces.recorded import Trace


@dataclass(frozen=True)
class Day:
    """It begins half way between depth and height, rising. Three hours are a steep day."""

    swing: float = 0.7
    period_s: float = 10_800.0

    def share(self, at_s: float) -> float:
        """Of the arrivals at the height of the day."""
        return 1 - self.swing * (1 - sin(2 * pi * at_s / self.period_s)) / 2


def superposed(
    trace: Trace, num_copies: int, length_s: float, day: Day, seed: int
) -> list[Arrival]:
    """`num_copies`: at the height of the day."""
    rng = random.Random(seed)  # noqa: S311
    found: list[Arrival] = []
    for _ in range(num_copies):
        begin_s = -rng.uniform(0, trace.length_s)
        while begin_s < length_s:
            found += _thinned(trace.arrivals, begin_s, length_s, day, rng)
            begin_s += trace.length_s
    found.sort(key=_moment)
    return found


def _thinned(
    arrivals: Sequence[Arrival], begin_s: float, length_s: float, day: Day, rng: random.Random
) -> list[Arrival]:
    """One round of one copy."""
    found = []
    for item in arrivals:
        at_s = begin_s + item.at_s
        if 0 <= at_s < length_s and rng.random() < day.share(at_s):
            found.append(Arrival(at_s, item.num_prompt_tokens, 0, item.num_output_tokens))
    return found


def _moment(arrival: Arrival) -> float:
    return arrival.at_s
