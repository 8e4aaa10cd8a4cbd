"""How often the promise was kept, as users had it.

Pure. A replay says what the past would have been like, by step times that workers tell of
themselves. Where these are wrong, so is the replay: that shows in what its requests really had.
"""

from collections.abc import Iterable
from typing import NamedTuple

from services.autoscaler.view import Arrival, Promise

LEAST_JUDGED = 50
"""below that a share is chance"""
LEAST_OFF = 0.05
"""A replay is within 1.5 points of a simulated cell, and a window holds times in which fewer
workers served"""


class Kept(NamedTuple):
    """Of the requests that have ended."""

    num_judged: int
    share: float
    """0 to 1"""

    @property
    def text(self) -> str:
        """For the end of a sentence; empty where none was judged."""
        if not self.num_judged:
            return ""
        return f"of the {self.num_judged} that ended {100 * self.share:.1f} % really had"

    def belies(self, replayed: float) -> bool:
        """Whether that many in time, 0 to 1, can be no account of these."""
        return self.num_judged >= LEAST_JUDGED and replayed - self.share > LEAST_OFF


def kept(
    arrivals: Iterable[Arrival],
    takes_s: Iterable[float],
    promise: Promise,
    *,
    prompts: bool,
    answers: bool,
) -> Kept:
    """`takes_s`: the computing of each arrival's prompt, which is not a wait. `prompts`, `answers`:
    which of both is judged. One that ended without a token had waited until then; if that is within
    the promise, nothing is known of it."""
    found = [
        in_time
        for arrival, own_s in zip(arrivals, takes_s, strict=True)
        if (in_time := _in_time(arrival, own_s, promise, prompts=prompts, answers=answers))
        is not None
    ]
    return Kept(len(found), sum(found) / len(found) if found else 1.0)


def _in_time(
    arrival: Arrival, own_s: float, promise: Promise, *, prompts: bool, answers: bool
) -> bool | None:
    """None: it is not known."""
    if arrival.age_s is None:
        return None
    if arrival.ttft_s is None:
        is_late = prompts and arrival.age_s - own_s > promise.wait_s
        return False if is_late else None
    waited_too_long = prompts and arrival.ttft_s - own_s > promise.wait_s
    token_s = arrival.token_s or 0.0
    return not (waited_too_long or (answers and token_s > promise.gap_s))
