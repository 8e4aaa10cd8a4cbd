"""What a prompt token costs on each worker, fitted to what was seen.

Time to token 1 is estimated as a * (tokens waiting or to compute). `a` is an exponential moving
average; an unseen worker uses the pool's. It orders workers and sizes timeouts, nothing else.
"""

FIRST_GUESS_S = 1e-4
"""seconds per prompt token before anything was measured"""
_WEIGHT = 0.2
_MIN_TOKENS = 16
"""shorter prompts measure the step's fixed cost, not the token's"""


class PrefillCost:
    """Seconds per uncached prompt token, by incarnation."""

    def __init__(self) -> None:
        self._by_incarnation: dict[str, float] = {}
        self._tried: dict[str, float] = {}
        self._pool_s: float | None = None

    def token_s(self, incarnation: str) -> float:
        """Seconds per token on this worker; while nothing of it was seen, what its own trial
        said, else the pool's."""
        return (
            self._by_incarnation.get(incarnation)
            or self._tried.get(incarnation)
            or self._pool_s
            or FIRST_GUESS_S
        )

    def expect(self, incarnation: str, token_s: float) -> None:
        """What the worker says of itself; 0 is nothing."""
        self._tried[incarnation] = token_s

    def observe(self, incarnation: str, num_tokens: int, seconds_s: float) -> None:
        """`num_tokens` were computed from START to token 1 in `seconds_s`."""
        if num_tokens < _MIN_TOKENS or seconds_s <= 0:
            return
        seen = seconds_s / num_tokens
        self._by_incarnation[incarnation] = _towards(self._by_incarnation.get(incarnation), seen)
        self._pool_s = _towards(self._pool_s, seen)

    def forget(self, incarnation: str) -> None:
        """The incarnation is gone."""
        self._by_incarnation.pop(incarnation, None)
        self._tried.pop(incarnation, None)


def _towards(average: float | None, seen: float) -> float:
    return seen if average is None else average + _WEIGHT * (seen - average)
