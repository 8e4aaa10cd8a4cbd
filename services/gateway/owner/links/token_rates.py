"""Tokens a second of one worker, over the last minute of what it says of itself."""

from collections import deque
from collections.abc import Mapping

LENGTH_S = 60.0
STEP_S = 1.0
"""between two that are kept, at least"""
COUNTERS = {"prompt_tokens_s": "prompt_tokens:computed", "tokens_s": "tokens_sampled"}
"""rate -> the worker's counter"""


class TokenRates:
    """Totals that a worker has told, and when."""

    def __init__(self) -> None:
        self._told: deque[tuple[float, dict[str, int]]] = deque()

    def note(self, now_s: float, counters: Mapping[str, int]) -> None:
        """What its latest PONG says."""
        if self._told and now_s - self._told[-1][0] < STEP_S:
            return
        self._told.append((now_s, {key: counters.get(key, 0) for key in COUNTERS.values()}))
        while len(self._told) > 2 and now_s - self._told[1][0] >= LENGTH_S:
            self._told.popleft()

    def per_s(self) -> dict[str, float]:
        """By name; 0 while it has told less than two."""
        if len(self._told) < 2:
            return dict.fromkeys(COUNTERS, 0.0)
        (then_s, then), (now_s, now) = self._told[0], self._told[-1]
        return {
            name: round((now[key] - then[key]) / (now_s - then_s), 1)
            for name, key in COUNTERS.items()
        }
