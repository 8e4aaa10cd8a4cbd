"""How long a sequence that comes now waits for a place in the batch."""

from shared.queue.throughput import Throughput
from shared.worker.attempts.table import AttemptTable


class Places:
    """Of a worker that decodes what it holds."""

    def __init__(self, num_places: int) -> None:
        """`num_places`: 0: of one that decodes nothing."""
        self._num_places = num_places
        self._throughput = Throughput()
        self._num_dropped = 0

    def wait_s(self, attempts: AttemptTable, now_s: float) -> float:
        """At least, for one of the default priority or a later one: as many have to end first as
        lack a place, but for later ones, which let it go ahead. 0 too where too little has ended
        to tell."""
        for _ in range(self._num_dropped, attempts.num_dropped):
            self._throughput.note_end(now_s, idle=not attempts)
        self._num_dropped = attempts.num_dropped
        if attempts:
            self._throughput.note_work(now_s)
        num_lacking = len(attempts) + 1 - self._num_places
        if not self._num_places or num_lacking <= 0:
            return 0.0
        num_ahead = sum(held.early for held in attempts if held.stage in ("queued", "reserve"))
        return min(num_lacking, num_ahead + 1) * self._throughput.expected_end_s(now_s)
