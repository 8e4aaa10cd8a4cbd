"""The longest token gap of each of the last seconds, of one worker."""

NUM_SECONDS = 120


class GapLine:
    """A ring by second. `note` is called once per frame of tokens."""

    def __init__(self) -> None:
        self._seconds = [-NUM_SECONDS] * NUM_SECONDS
        """which second each place is about; at first one that is never asked for"""
        self._worst_s = [0.0] * NUM_SECONDS

    def note(self, now_s: float, gap_s: float) -> None:
        """A token came, or is missing, `gap_s` after the one before it."""
        second = int(now_s)
        place = second % NUM_SECONDS
        if self._seconds[place] != second:
            self._seconds[place] = second
            self._worst_s[place] = gap_s
        elif gap_s > self._worst_s[place]:
            self._worst_s[place] = gap_s

    def last_ms(self, now_s: float) -> list[float | None]:
        """By second, the current one last; None where nothing was decoded."""
        until = int(now_s) + 1
        return [self._at(second) for second in range(until - NUM_SECONDS, until)]

    def _at(self, second: int) -> float | None:
        place = second % NUM_SECONDS
        return round(self._worst_s[place] * 1e3, 1) if self._seconds[place] == second else None
