"""How many workers would have been enough for the past.

Pure. The share of requests in time grows with the number of workers, so the smallest number that is
enough is found by doubling and halving, beginning next to what the last decision found: a window of
minutes hardly changes within a second, so two replays mostly do.
"""

from dataclasses import dataclass
from functools import cache
from typing import Protocol

from services.autoscaler.view import Role

LOOK_BELOW = 0.05
"""A replay goes on until its share is this far below the target: near it a person wants to read how
near, and far below it the number is worth no time"""
SAFETY = 0.87
"""of what is promised: one worker fewer has to keep it with this much in hand. Else load that ends
a little above the edge would bring the worker back"""


class Replay(Protocol):
    """The past, served again by another number of workers."""

    @property
    def growth(self) -> float:
        """Times as much comes now."""

    def share(self, num_workers: int, at_least: float = 0.0, strictness: float = 1.0) -> float:
        """Requests that were in time, 0 to 1. Fewer than `at_least`: some number below it.
        `strictness`: of what is promised."""

    def latest(self, num_requests: int) -> "Replay":
        """Of the last `num_requests` alone, as many as came."""


@dataclass(frozen=True)
class Need:
    """What the past asks for."""

    num_workers: int
    share: float
    """with them; somewhat below the target if even the most are too few"""
    share_before: float | None
    """with one fewer; None if there may not be fewer"""


def smallest_need(replay: Replay, target: float, least: int, most: int, guess: int) -> Need:
    """The smallest number of [least, most] whose share is the target, else `most`.

    `least` is at least 1. `guess`: near which to look first; 0: nowhere in particular.
    """

    @cache
    def share(num_workers: int) -> float:
        return replay.share(num_workers, target - LOOK_BELOW)

    too_few, enough = least - 1, max(least, most)
    probe, stride = min(max(guess - 1, least), enough), 1
    while enough - too_few > 1:
        if share(probe) >= target:
            enough = probe
            probe = max(probe - stride, (too_few + enough) // 2)
        else:
            too_few = probe
            probe = min(probe + stride, (too_few + enough) // 2)
        stride *= 2
    return Need(enough, share(enough), share(enough - 1) if enough > least else None)


def is_safe(replay: Replay, num_workers: int, target: float) -> bool:
    """Whether `num_workers` would have been enough with something in hand."""
    return num_workers > 0 and replay.share(num_workers, target, SAFETY) >= target


def sentence(need: Need, role: Role, target: float, promise: str) -> str:
    """Why it is this number. `promise`: the end of the sentence, of what and how much."""
    share = _percent(need.share, target)
    if need.share_before is None:
        return f"with {_workers(need.num_workers, role)} {share} {promise}"
    before = _percent(need.share_before, target)
    fewer = _workers(need.num_workers - 1, role)
    return f"with {fewer} {before} {promise}, with {need.num_workers} {share}"


def _workers(number: int, role: Role) -> str:
    return f"{number} {role} worker{'s' * (number != 1)}"


def _percent(share: float, target: float) -> str:
    """A replay that was stopped early knows only that it was less."""
    floor = target - LOOK_BELOW
    return f"fewer than {100 * floor:.1f} %" if share < floor else f"{100 * share:.1f} %"
