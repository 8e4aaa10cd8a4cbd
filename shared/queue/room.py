"""Which prompts a worker takes that it cannot begin at once. Pure.

Those that have not begun wait for it in its room, of two of its steps; the rest waits where any
worker can take it. A prompt of more than half of the room, of more than one step, is long: the
engine computes shorter ones first (`shared.engine.scheduling.prompt_order`). So a worker takes one
long prompt that has not begun whatever short ones wait there, and short ones as far as there is
room, of which a long one leaves half. Prompts of later classes take neither the room nor the place
of early ones. Where nothing waits a prompt of any length is taken.
"""

import math
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple


class LongPlace(IntEnum):
    """Whom a worker's place for a long prompt is for now."""

    UNTOLD = -1
    """of an earlier release: a long prompt needs room for all of it"""
    NONE = 0
    EARLY = 1
    """a later one has it, and leaves it to an early one"""
    ANY = 2


class Room(NamedTuple):
    """Of one worker, as it is now. `early`: of the default class or an earlier one."""

    limit_tokens: int
    """where nothing waits"""
    tokens: int
    early_tokens: int
    """what later prompts take is still there for early ones"""
    long_place: int = LongPlace.ANY

    @classmethod
    def whole(cls, limit_tokens: int) -> "Room":
        return cls(limit_tokens, limit_tokens, limit_tokens)

    @property
    def long_tokens(self) -> float:
        """A prompt of more is long."""
        return math.inf if self.long_place == LongPlace.UNTOLD else self.limit_tokens // 2

    def takes(self, num_tokens: int, *, early: bool = True) -> bool:
        """Also a long one for which there is room, as there is with none waiting; whoever asks
        many may ask for that first."""
        if num_tokens > self.long_tokens:
            return self.takes_long(early=early)
        return (self.early_tokens if early else self.tokens) >= num_tokens

    def takes_long(self, *, early: bool = True) -> bool:
        """A prompt of any length."""
        return self.long_place >= (LongPlace.EARLY if early else LongPlace.ANY)

    def less(self, prompts: Iterable[tuple[int, bool]]) -> "Room":
        """With these there too: of each its tokens, and whether it is early."""
        limit, tokens, early_tokens, place = self
        for num_tokens, early in prompts:
            taken = taken_room(num_tokens, limit)
            tokens -= taken
            early_tokens -= taken * early
            if num_tokens > self.long_tokens:
                place = min(place, _left_by(early=early))
        return Room(limit, tokens, max(tokens, early_tokens), place)

    def refused(self, *, early: bool) -> "Room":
        """The worker had less than that for such a prompt."""
        place = min(self.long_place, _left_by(early=early))
        return Room(self.limit_tokens, 0, 0 if early else self.early_tokens, place)


def taken_room(num_tokens: int, limit_tokens: int) -> int:
    """By a prompt that has not begun: of a long one half of all."""
    return min(num_tokens, limit_tokens // 2)


def _left_by(*, early: bool) -> LongPlace:
    """Of its place, by a long prompt that has it."""
    return LongPlace.NONE if early else LongPlace.EARLY
