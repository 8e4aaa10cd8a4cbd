"""Which prompts' chunks a step leaves out, so that one that ends in it is not late. Pure.

A step takes as long as all that it computes. Where a prompt ends in it, chunks that can wait would
delay its first token: those of a later priority and, for a short prompt, those of long ones. The
step after one that left some out takes all, so they go on however many prompts end.
"""

import math

from shared.engine.scheduling.sequence import Sequence


class LightSteps:
    """Asked for each prompt of a step in turn, in the order of their computation."""

    def __init__(self) -> None:
        self._may_leave_out = self._left_out = False
        self._first_priority = math.inf
        """of prompts that end"""
        self._short_ends = False

    def begin(self, *, alone: bool = False) -> None:
        """A step is put together. `alone`: of one sequence that is computed alone; for all others
        it is none, so those that were left out go on in the next of theirs."""
        self._first_priority, self._short_ends = math.inf, False
        if not alone:
            self._may_leave_out, self._left_out = not self._left_out, False

    def note(self, sequence: Sequence, *, ends: bool) -> None:
        """Its chunk is in this step. `ends`: its prompt ends with it."""
        if ends:
            self._first_priority = min(self._first_priority, sequence.work.priority)
            self._short_ends |= sequence.turn.bucket == 0

    def leave_out(self, sequence: Sequence) -> bool:
        """Whether its chunk is to wait for the next step."""
        is_later = sequence.work.priority > self._first_priority
        is_long = sequence.turn.bucket > 0 and self._short_ends
        waits = self._may_leave_out and (is_later or is_long)
        self._left_out |= waits
        return waits
