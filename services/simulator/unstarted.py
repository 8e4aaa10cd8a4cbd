"""Prompts that a simulated worker has and has not begun: what is left of its room."""

from services.simulator.request import Request
from shared.queue.room import LongPlace, Room, taken_room


class Unstarted:
    """All of the default class. Sums, so that a note costs the same however many there are."""

    def __init__(self, limit_tokens: int) -> None:
        self._whole = Room.whole(limit_tokens)
        self._num_tokens = 0
        """as far as they take room"""
        self._num_long = 0

    @property
    def room(self) -> Room:
        limit = self._whole.limit_tokens
        left = max(0, limit - self._num_tokens)
        return Room(limit, left, left, LongPlace.NONE if self._num_long else LongPlace.ANY)

    @property
    def is_empty(self) -> bool:
        return not self._num_tokens

    def add(self, request: Request) -> None:
        self._count(request, 1)

    def begin(self, request: Request) -> None:
        """Its first chunk is computed."""
        self._count(request, -1)

    def _count(self, request: Request, sign: int) -> None:
        whole = self._whole
        self._num_tokens += sign * taken_room(request.num_tokens, whole.limit_tokens)
        self._num_long += sign * (request.num_tokens > whole.long_tokens)
