"""What a prompt token costs on each worker, fitted to what was seen.

Time to token 1 is taken as a * tokens waiting or to compute; `a` is an average that forgets, a
worker never seen has the pool's. It orders workers and sizes timeouts; nothing else rests on it.
"""

FIRST_GUESS_S = 1e-4
"""seconds per prompt token before anything was measured"""
_WEIGHT = 0.2
_MIN_TOKENS = 16
"""shorter prompts measure the step's fixed cost, not the token's"""


class PrefillCost:
    """Seconds per uncached prompt token, by incarnation."""

    def __init__(self) -> None:
        self._by_inc: dict[str, float] = {}
        self._tried: dict[str, float] = {}
        self._pool_s: float | None = None

    def token_s(self, inc: str) -> float:
        """Seconds per token on this worker; while nothing of it was seen, what its own trial
        said, else the pool's."""
        return self._by_inc.get(inc) or self._tried.get(inc) or self._pool_s or FIRST_GUESS_S

    def expect(self, inc: str, token_s: float) -> None:
        """What the worker says of itself; 0 is nothing."""
        self._tried[inc] = token_s

    def observe(self, inc: str, num_tokens: int, seconds_s: float) -> None:
        """`num_tokens` were computed from START to token 1 in `seconds_s`."""
        if num_tokens < _MIN_TOKENS or seconds_s <= 0:
            return
        seen = seconds_s / num_tokens
        self._by_inc[inc] = _towards(self._by_inc.get(inc), seen)
        self._pool_s = _towards(self._pool_s, seen)

    def forget(self, inc: str) -> None:
        """The incarnation is gone."""
        self._by_inc.pop(inc, None)
        self._tried.pop(inc, None)


def _towards(average: float | None, seen: float) -> float:
    return seen if average is None else average + _WEIGHT * (seen - average)
