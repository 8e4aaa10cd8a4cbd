"""How much work retries may make, so that no fault feeds itself. Pure.

Their share is 10 % of the prompt tokens admitted in the last minute. A cell that has admitted
little lately may still lose a worker with all its streams, so there is a minimum: a burst of four
seconds of the workers' computing, refilled over twenty. Dozens of streams then restart within a
second, in which the workers could not compute more anyway, and most of their time is always left
to requests that did not fail.
"""

from collections import deque

SHARE = 0.1
WINDOW_S = 60.0
FLOOR_SHARE = 0.2
"""of what the pool computes, for as long as it takes"""
FLOOR_S = 4.0
"""of the pool's computing, at once"""


class RetryBudget:
    """Work is counted in prompt tokens to compute. `now_s` is any monotonic clock's."""

    def __init__(self, now_s: float) -> None:
        self._admitted = _Window()
        self._spent = _Window()
        self._pool_tokens_per_s = 0.0
        self._floor = 0.0
        self._filled_s = now_s

    def note_admitted(self, num_tokens: int, now_s: float) -> None:
        self._admitted.add(num_tokens, now_s)

    def note_pool(self, tokens_per_s: float, now_s: float) -> None:
        """What the pool's workers compute now; a pool that has just come has its floor in full."""
        if tokens_per_s <= 0:
            return
        full, was_full = FLOOR_S * tokens_per_s, FLOOR_S * self._pool_tokens_per_s
        self._fill(now_s)
        self._floor = full if not was_full else self._floor * full / was_full
        self._pool_tokens_per_s = tokens_per_s

    def take(self, num_tokens: int, now_s: float) -> bool:
        """Whether a retry of so much work may start now; if so, it is spent. One that is larger
        than the floor may once the floor is full."""
        if self._spent.total(now_s) + num_tokens <= SHARE * self._admitted.total(now_s):
            self._spent.add(num_tokens, now_s)
            return True
        if not self._pool_tokens_per_s:
            return True  # no worker yet: what may start cannot
        self._fill(now_s)
        if self._floor < min(num_tokens, FLOOR_S * self._pool_tokens_per_s):
            return False
        self._floor -= num_tokens
        return True

    def _fill(self, now_s: float) -> None:
        gained = FLOOR_SHARE * self._pool_tokens_per_s * (now_s - self._filled_s)
        self._floor = min(self._floor + gained, FLOOR_S * self._pool_tokens_per_s)
        self._filled_s = now_s


class _Window:
    """A sum over the last minute."""

    def __init__(self) -> None:
        self._items: deque[tuple[float, int]] = deque()
        self._total = 0

    def add(self, amount: int, now_s: float) -> None:
        self._forget(now_s)
        self._items.append((now_s, amount))
        self._total += amount

    def total(self, now_s: float) -> int:
        self._forget(now_s)
        return self._total

    def _forget(self, now_s: float) -> None:
        while self._items and self._items[0][0] <= now_s - WINDOW_S:
            self._total -= self._items.popleft()[1]
