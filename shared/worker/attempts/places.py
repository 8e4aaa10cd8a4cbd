"""How long a sequence that comes now waits for a place in the batch."""

from shared.queue.throughput import Throughput
from shared.worker.attempts.table import AttemptTable


class Places:
    """Of a worker that decodes what it holds."""

    def __init__(self, num_places: int) -> None:
        """`num_places`: 0: of one that decodes nothing."""
        self._num_places = num_places
        self._throughput: Throughput | None = None
        """since all places are taken; None: one is free"""
        self._num_dropped = 0

    def wait_s(self, attempts: AttemptTable, now_s: float) -> float:
        """At least, for one of the default priority or a later one: as many have to end first as
        lack a place, but for later ones. Those let it go ahead where they wait, and give their
        places up where they were computed here. 0 too where too little has ended to tell."""
        num_ended = attempts.num_dropped - self._num_dropped
        self._num_dropped = attempts.num_dropped
        if not 0 < self._num_places <= len(attempts):
            self._throughput = None  # how often one ends says nothing of a full batch
            return 0.0
        if self._throughput is None:
            self._throughput, num_ended = Throughput(), 0
            self._throughput.note_work(now_s)
        for _ in range(num_ended):
            self._throughput.note_end(now_s, idle=False)
        num_lacking = 1 - self._num_places
        num_waiting = 1
        for held in attempts:
            num_lacking += held.early or held.mode == "receive"
            num_waiting += held.early and not (held.started_ns or held.reserved_ns)
        return max(0, min(num_lacking, num_waiting)) * self._throughput.expected_end_s(now_s)
