"""The longest gap between two tokens of one worker's own, of each of the last seconds."""

import statistics

NUM_SECONDS = 120
PACE_SECONDS = 10
"""that the pace is measured over"""
LEAST_SECONDS = 5
"""of them with tokens"""
LEAST_MEANS = 3
"""seconds with tokens of which one may have been a stall"""


class GapLine:
    """A ring by second. `note` is called once per frame of tokens."""

    def __init__(self) -> None:
        self._seconds = [-NUM_SECONDS] * NUM_SECONDS
        """which second each place is about; at first one that is never asked for"""
        self._worst_s = [0.0] * NUM_SECONDS
        self._sum_s = [0.0] * NUM_SECONDS
        self._num = [0] * NUM_SECONDS

    def note(self, now_s: float, gap_s: float) -> None:
        """A token came `gap_s` after the one before it, the longest gap of its frame."""
        place = self._place(int(now_s))
        self._sum_s[place] += gap_s
        self._num[place] += 1
        self._worst_s[place] = max(self._worst_s[place], gap_s)

    def note_missing(self, now_s: float, gap_s: float) -> None:
        """None has come since the one `gap_s` ago."""
        place = self._place(int(now_s))
        self._worst_s[place] = max(self._worst_s[place], gap_s)

    def last_ms(self, now_s: float) -> list[float | None]:
        """By second, the current one last; None where nothing was decoded."""
        until = int(now_s) + 1
        return [self._at(second) for second in range(until - NUM_SECONDS, until)]

    def pace_s(self, now_s: float) -> float | None:
        """The median of the longest gaps of the last whole seconds; None if in too few of them
        anything was decoded."""
        gaps_ms = (self._at(second) for second in range(int(now_s) - PACE_SECONDS, int(now_s)))
        seen_ms = [gap_ms for gap_ms in gaps_ms if gap_ms is not None]
        return statistics.median(seen_ms) / 1e3 if len(seen_ms) >= LEAST_SECONDS else None

    def mean_s(self, now_s: float) -> float:
        """Of the gaps of the last seconds, that of the middle second: one that stood still does not
        count. 0 where in too few of them anything was decoded."""
        seconds = range(int(now_s) - PACE_SECONDS, int(now_s) + 1)
        places = [place for each in seconds if self._seconds[place := each % NUM_SECONDS] == each]
        means_s = [self._sum_s[place] / self._num[place] for place in places if self._num[place]]
        return statistics.median_low(means_s) if len(means_s) >= LEAST_MEANS else 0.0

    def _place(self, second: int) -> int:
        """Of the current second."""
        place = second % NUM_SECONDS
        if self._seconds[place] != second:
            self._seconds[place] = second
            self._worst_s[place] = self._sum_s[place] = 0.0
            self._num[place] = 0
        return place

    def _at(self, second: int) -> float | None:
        place = second % NUM_SECONDS
        return round(self._worst_s[place] * 1e3, 1) if self._seconds[place] == second else None
