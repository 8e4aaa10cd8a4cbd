"""In which order an engine computes its prompts. Pure.

Prompts come in buckets by length: those that fit one step, those of up to two steps, of four, and
so on. A lower bucket goes first, of one bucket the prompt that arrived first. Once lower buckets
had PATIENCE times the whole steps of a prompt after it, it is overdue and counts as one that fits
a step, and so does what arrived before it. So short prompts do not wait for a long one's end, and
no prompt waits forever.
"""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # a sequence has a turn
    from shared.engine.scheduling.sequence import Sequence

PATIENCE = 4
"""short prompts that are up to 4/5 of all tokens never wait for a long one's end"""
NUM_BUCKETS = 16


class PromptTurn(NamedTuple):
    """Of one prompt."""

    bucket: int = 0
    due: int = 0
    """tokens of lower buckets, from the start of the engine, after which it is overdue"""


class PromptOrder:
    """Told of each prompt that arrives."""

    def __init__(self, step_tokens: int) -> None:
        self._step_tokens = step_tokens
        self._num_lower_tokens = [0] * NUM_BUCKETS
        """that arrived in lower buckets, by bucket"""

    def arrive(self, num_tokens: int) -> PromptTurn:
        """`num_tokens`: that it has to compute."""
        whole_steps = (num_tokens - 1) // self._step_tokens
        bucket = min(whole_steps.bit_length(), NUM_BUCKETS - 1)
        patience = PATIENCE * whole_steps * self._step_tokens
        turn = PromptTurn(bucket, self._num_lower_tokens[bucket] + patience)
        for longer in range(bucket + 1, NUM_BUCKETS):
            self._num_lower_tokens[longer] += num_tokens
        return turn

    def place(self, sequence: "Sequence") -> tuple[int, int, int]:
        """The prompt with the lowest is computed first."""
        return sequence.work.priority, self.bucket_of(sequence.turn), sequence.arrival

    def in_order(self, sequences: Iterable["Sequence"]) -> list["Sequence"]:
        """The one to compute first is the first. Nobody is passed by one that is overdue: of two
        longer ones the later may be so before the earlier."""
        places = {sequence: self.place(sequence) for sequence in sequences}
        overdue: dict[int, int] = {}
        """by priority: the latest arrival of a long prompt that is"""
        for sequence, (priority, bucket, arrival) in places.items():
            if sequence.turn.bucket and not bucket:
                overdue[priority] = max(arrival, overdue.get(priority, arrival))

        def place(sequence: "Sequence") -> tuple[int, int, int]:
            priority, bucket, arrival = places[sequence]
            waits = arrival > overdue.get(priority, -1)
            return priority, bucket if waits else 0, arrival

        return sorted(places, key=place)

    def bucket_of(self, turn: PromptTurn) -> int:
        """As it counts now."""
        overdue = turn.bucket > 0 and self._num_lower_tokens[turn.bucket] >= turn.due
        return 0 if overdue else turn.bucket


class PromptReach:
    """How far a step reaches, told of each prompt that it admits: a heap, for a queue may be long
    and a step may admit all of it."""

    def __init__(
        self, order: PromptOrder, waiting: Iterable["Sequence"], writing: Iterable["Sequence"]
    ) -> None:
        """`waiting`: prompts in the queue. `writing`: those that are being computed."""
        self._order = order
        self._waiting = list(map(order.place, waiting))
        self._writing: list[tuple[tuple[int, int, int], int]] = []
        self._admitted: set[tuple[int, int, int]] = set()
        self._num_before = 0
        heapify(self._waiting)
        for sequence in writing:
            self._write(sequence)

    def admit(self, sequence: "Sequence") -> None:
        """It is in the queue no more, and is computed."""
        self._admitted.add(self._order.place(sequence))
        self._write(sequence)

    def num_before(self) -> int:
        """Tokens left of prompts that go before those in the queue, of which there must be one."""
        while self._waiting[0] in self._admitted:
            heappop(self._waiting)
        while self._writing and self._writing[0][0] < self._waiting[0]:
            self._num_before += heappop(self._writing)[1]
        return self._num_before

    def _write(self, sequence: "Sequence") -> None:
        num_left = len(sequence.token_ids) - sequence.num_scheduled_tokens
        heappush(self._writing, (self._order.place(sequence), num_left))
