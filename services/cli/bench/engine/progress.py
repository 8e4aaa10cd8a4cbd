"""What runs now, and about how long is left."""

import time
from collections.abc import Sequence

from services.cli.bench.measure.progress_line import announce


class Progress:
    """Announces parts of a run; what each takes is estimated beforehand, and the estimates of
    those to come are corrected by how long those before really took."""

    def __init__(self, estimates_s: Sequence[float]) -> None:
        self._estimates_s = list(estimates_s)
        self._start_s = time.monotonic()
        self._num_begun = 0

    def begin(self, text: str) -> None:
        """The next part begins."""
        self._num_begun += 1
        done_s = sum(self._estimates_s[: self._num_begun - 1])
        rest_s = sum(self._estimates_s[self._num_begun - 1 :])
        factor = (time.monotonic() - self._start_s) / done_s if done_s else 1.0
        num = len(self._estimates_s)
        announce(f"[{self._num_begun}/{num}] {text}; about {rest_s * factor:.0f} s left")
