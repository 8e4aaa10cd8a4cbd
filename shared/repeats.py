"""Which of many equal events are worth a line in the log."""

import time
from collections.abc import Callable

FORGET_S = 60.0
"""an event that did not come for this long is news again"""


class Repeats:
    """Counts events by kind: the 1st, 2nd, 4th, 8th ... of a row is worth a line."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._rows: dict[str, tuple[int, float]] = {}
        """kind -> (how many in this row, when the last one came)"""

    def due(self, kind: str) -> int:
        """Note one more; how many came in this row if it is worth a line, else 0."""
        now_s = self._now_s()
        count, last_s = self._rows.get(kind, (0, now_s))
        count = 1 if now_s - last_s > FORGET_S else count + 1
        self._rows[kind] = count, now_s
        return count if count & (count - 1) == 0 else 0
