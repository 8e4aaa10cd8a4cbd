"""When what prefill has published of a prompt is worth reading.

A link between two GPUs that is awake takes power, however little it carries, and falls asleep some
time after its last byte. At its power limit a GPU computes 2 % slower meanwhile (README). What
comes early therefore waits, and is read in one go that ends before prefill does. Pure; no I/O.

    published    |  |  |  |  |  |  |  |  |  |  |  |  |  |        layer groups, at prefill's pace
    read                                     |=====| |  |        what waits, then the last ones
"""

from collections import deque

from shared.clock import Clock

FIRST_S = 0.01
"""what takes this long to read is read, as long as nothing says how long prefill will take"""
LEAST_LEFT_S = 0.02
"""before prefill ends everything is read as it comes: small copies take their latency"""
UNKNOWN_BYTES_S = 25e9
"""taken for the rate of a link between GPUs until it is measured: below most"""
NUM_RECENT = 8
"""publications that the pace is taken from: about one step of layer groups"""


class Bursts:
    """Of one pull."""

    def __init__(self, num_bytes: int, clock: Clock) -> None:
        """`num_bytes`: of the prompt's blocks."""
        self._num_bytes = num_bytes
        self._clock = clock
        self._num_published = 0
        self._last_s = 0.0
        """when that was so first"""
        self._recent: deque[tuple[float, int]] = deque(maxlen=NUM_RECENT)
        """(seconds, bytes) from one publication to the next"""

    def is_due(self, num_published: int, num_waiting: int, bytes_s: float) -> bool:
        """To be asked whenever something was published. `num_published`: bytes of the prompt that
        prefill has computed. `num_waiting`: bytes published and not read. `bytes_s`: the link's
        rate; 0: not known."""
        if num_published != self._num_published:
            self._note(num_published, self._clock.monotonic_s())
        if not num_waiting:
            return False
        bytes_s = bytes_s or UNKNOWN_BYTES_S
        left_s = self._left_s()
        if left_s is None:
            return num_waiting >= FIRST_S * bytes_s
        num_left = self._num_bytes - num_published
        return left_s <= LEAST_LEFT_S or num_waiting + num_left >= left_s / 2 * bytes_s

    def _note(self, num_published: int, now_s: float) -> None:
        num_more = num_published - self._num_published
        if num_more < 0:  # blocks were published again under other tags
            self._recent.clear()
        elif self._num_published:
            self._recent.append((now_s - self._last_s, num_more))
        self._num_published, self._last_s = num_published, now_s

    def _left_s(self) -> float | None:
        """Until everything is published, at the pace of late; None: there is none. The longest of
        the recent times does not count: between two steps a prompt may wait for others."""
        num_left = self._num_bytes - self._num_published
        if not num_left:
            return 0.0
        if len(self._recent) < 2:
            return None
        paced = sorted(self._recent)[:-1]
        pace_s = sum(seconds for seconds, _ in paced) / sum(num for _, num in paced)
        return num_left * pace_s
