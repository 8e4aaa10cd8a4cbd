"""The line of a simulated gateway: prompts that found no worker with room, as they came."""

from collections import deque

from services.simulator.request import Request
from shared.queue.backlog import Waiting


class Line:
    """Short prompts and long ones apart, each with its number of arrival."""

    def __init__(self) -> None:
        self._short: deque[tuple[int, Request]] = deque()
        self._long: deque[tuple[int, Request]] = deque()
        self._num_joined = 0
        self._num_tokens = 0

    @property
    def waiting(self) -> Waiting:
        return Waiting(len(self._short) + len(self._long), self._num_tokens)

    def join(self, request: Request, *, is_long: bool) -> bool:
        """Whether none is before it that it may not pass."""
        goes = not (self._short or (is_long and self._long))
        self._num_joined += 1
        self._num_tokens += request.num_tokens
        (self._long if is_long else self._short).append((self._num_joined, request))
        return goes

    def first(self, *, short_only: bool) -> tuple[Request, bool] | None:
        """The one that came first, and whether it is long."""
        long = None if short_only or not self._long else self._long[0]
        short = self._short[0] if self._short else None
        if long is not None and (short is None or long[0] < short[0]):
            return long[1], True
        return None if short is None else (short[1], False)

    def leave(self, *, is_long: bool) -> None:
        """The first of these."""
        _, request = (self._long if is_long else self._short).popleft()
        self._num_tokens -= request.num_tokens
