"""Engines that died by themselves while they computed one request, and what follows (R9).

    1st death    it goes on anywhere
    2nd          from then on it is computed alone: the next death tells whether it was this one
    2nd alone    it is convicted

So a request that kills engines kills four at most, and one that was only there when they died is
never convicted. Deaths that it shared are forgotten once it got on; those that it died alone are
not.
"""

SHARED_UNTIL_ALONE = 2
ALONE_UNTIL_CONVICTED = 2


class Crashes:
    """`num_tokens` is how many output tokens the request has."""

    def __init__(self, forgiven_after: int) -> None:
        self._forgiven_after = forgiven_after
        self._num_deaths = self._num_alone = 0
        self._last_at = 0
        self._dead: list[str] = []

    def note(self, incarnation: str, num_tokens: int, *, alone: bool) -> None:
        """An engine died in a step that computed it, `alone` or with others; once for each."""
        if incarnation in self._dead:
            return
        self._dead.append(incarnation)
        self._num_deaths += 1
        self._num_alone += alone
        self._last_at = num_tokens

    def note_progress(self, num_tokens: int) -> None:
        if num_tokens - self._last_at >= self._forgiven_after:
            self._num_deaths = 0

    @property
    def any(self) -> bool:
        """It may be what an engine died of."""
        return self._num_deaths > 0 or self.suspected

    @property
    def suspected(self) -> bool:
        """It is to be computed alone."""
        return self._num_deaths >= SHARED_UNTIL_ALONE or self._num_alone > 0

    @property
    def convicted(self) -> bool:
        """It kills engines."""
        return self._num_alone >= ALONE_UNTIL_CONVICTED
