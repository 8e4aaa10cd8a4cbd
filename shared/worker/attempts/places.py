"""How long a sequence that comes now waits for a place in the batch."""

from heapq import heapify, heapreplace
from math import inf
from typing import NamedTuple

from shared.queue.throughput import Throughput
from shared.worker.attempts.table import AttemptTable, HeldAttempt

FRESH_S = 0.1
"""how long what was reckoned of the tokens that are left is good"""


class Holders(NamedTuple):
    """Attempts against one of the default priority."""

    placed: list[HeldAttempt]
    """they have a place, and keep it"""
    waiting: list[HeldAttempt]
    """they are given one before it"""
    num_keeping: int
    """that have or wait for one and do not give it up"""

    @classmethod
    def of(cls, attempts: AttemptTable) -> "Holders":
        """In one pass: with each step. One whose KV comes from elsewhere gets its place when that
        is here."""
        placed, waiting, num_keeping = list[HeldAttempt](), list[HeldAttempt](), 0
        for held in attempts:
            receives = held.mode == "receive"
            keeps = held.early or receives
            num_keeping += keeps
            if held.first_decode_ns if receives else held.started_ns:
                if keeps:
                    placed.append(held)
            elif held.early:
                waiting.append(held)
        return cls(placed, waiting, num_keeping)


class Places:
    """Of a worker that decodes what it holds."""

    def __init__(self, num_places: int) -> None:
        """`num_places`: 0: of one that decodes nothing."""
        self._num_places = num_places
        self._throughput: Throughput | None = None
        """since all places are taken; None: one is free"""
        self._num_dropped = 0
        self._least_s = 0.0
        self._reckoned_s = -inf
        """when that was, as `now_s`"""

    def wait_s(self, attempts: AttemptTable, now_s: float, step_s: float = 0.0) -> float:
        """At least, for one of the default priority or a later one: as many have to end first as
        lack a place, but for later ones. Those let it go ahead where they wait, and give their
        places up where they were computed here. While too little has ended to tell, as many tokens
        have to come as those before it ask for themselves, one in `step_s`."""
        num_ended = attempts.num_dropped - self._num_dropped
        self._num_dropped = attempts.num_dropped
        if not 0 < self._num_places <= len(attempts):
            self._throughput = None  # how often one ends says nothing of a full batch
            return 0.0
        if self._throughput is None:
            self._throughput, num_ended = Throughput(), 0
            self._throughput.note_work(now_s)
            self._reckoned_s = -inf
        for _ in range(num_ended):
            self._throughput.note_end(now_s, idle=False)
        if each_s := self._throughput.expected_end_s(now_s):
            return self._num_ends(Holders.of(attempts)) * each_s
        if now_s - self._reckoned_s >= FRESH_S:
            self._least_s = self._num_steps(Holders.of(attempts)) * step_s
            self._reckoned_s = now_s
        return self._least_s

    def _num_ends(self, holders: Holders) -> int:
        """That have to come before it has a place."""
        num_lacking = 1 + holders.num_keeping - self._num_places
        return max(0, min(num_lacking, 1 + len(holders.waiting)))

    def _num_steps(self, holders: Holders) -> int:
        """The same where each ends once it has the tokens that it asks for."""
        free_at = sorted(held.num_left_tokens for held in holders.placed)[-self._num_places :]
        free_at += [0] * (self._num_places - len(free_at))
        heapify(free_at)
        for held in holders.waiting:
            heapreplace(free_at, free_at[0] + held.num_left_tokens)
        return free_at[0]
