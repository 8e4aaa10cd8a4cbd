"""The time from a token to the next one of its sequence."""

from collections.abc import Hashable


class Gaps:
    """Of all sequences of one run."""

    def __init__(self) -> None:
        self._last_s: dict[Hashable, float] = {}
        self._total_s = 0.0
        self._num = 0

    def note(self, sequence: Hashable, now_s: float) -> None:
        """It has one more token."""
        last_s = self._last_s.get(sequence)
        if last_s is not None:
            self._total_s += now_s - last_s
            self._num += 1
        self._last_s[sequence] = now_s

    @property
    def mean_s(self) -> float:
        """Of all gaps; 0 without any."""
        return self._total_s / self._num if self._num else 0.0
