"""When what prefill has published of a prompt is worth reading.

A link between two GPUs that is awake takes power, however little it carries, and falls asleep some
time after its last byte. At its power limit a GPU computes 2 % slower meanwhile (README). What
comes early therefore waits, and is read in one go that ends before prefill does. Pure; no I/O.
"""

from shared.clock import Clock

FIRST_S = 0.01
"""what takes this long to read is read, as long as nothing says how long prefill will take"""
UNKNOWN_BYTES_S = 10e9
"""taken for the rate of a link between GPUs until it is measured: below most"""


class Bursts:
    """Of one pull."""

    def __init__(self, num_blocks: int, block_bytes: int, clock: Clock) -> None:
        """`num_blocks`: of the prompt."""
        self._num_blocks = num_blocks
        self._block_bytes = block_bytes
        self._clock = clock
        self._first = self._last = (0, 0.0)
        """(blocks, time), as they were first published and as the last ones were"""

    def is_due(self, num_published: int, num_waiting_bytes: int, bytes_s: float) -> bool:
        """`num_published`: blocks of which something is. `num_waiting_bytes`: published and not
        read. `bytes_s`: the link's rate; 0: not known."""
        now_s = self._clock.monotonic_s()
        if num_published != self._last[0]:
            self._last = num_published, now_s
            if not self._first[0]:
                self._first = self._last
        if not num_waiting_bytes:
            return False
        bytes_s = bytes_s or UNKNOWN_BYTES_S
        left_s = self._left_s(now_s)
        if left_s is None:
            return num_waiting_bytes >= FIRST_S * bytes_s
        num_left_bytes = (self._num_blocks - num_published) * self._block_bytes
        return num_waiting_bytes + num_left_bytes >= left_s / 2 * bytes_s

    def _left_s(self, now_s: float) -> float | None:
        """Until the last block is published, at the pace so far; None: there is none."""
        num_left = self._num_blocks - self._last[0]
        if not num_left:
            return 0.0
        num_since = self._last[0] - self._first[0]
        if not num_since:
            return None
        pace_s = (self._last[1] - self._first[1]) / num_since
        return max(0.0, num_left * pace_s - (now_s - self._last[1]))
