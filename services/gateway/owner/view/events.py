"""The last things that happened to the cell, as this gateway saw them."""

from collections import deque
from dataclasses import dataclass
from typing import Any, Literal

from shared.clock import Clock

MAX_EVENTS = 200
SAME_WITHIN_S = 60.0
"""an event like the one before it, and so soon after, is counted with that one"""
_NS = 1_000_000_000

Kind = Literal["worker", "redis", "retry"]


@dataclass
class _Event:
    kind: Kind
    text: str
    at_ns: int
    """the last time"""
    num: int


class Events:
    """A ring, the oldest first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._events: deque[_Event] = deque(maxlen=MAX_EVENTS)

    def note(self, kind: Kind, text: str, num: int = 1) -> None:
        """It happened `num` times."""
        now_ns = self._clock.wall_ns()
        last = self._events[-1] if self._events else None
        if (
            last is not None
            and (last.kind, last.text) == (kind, text)
            and now_ns - last.at_ns < SAME_WITHIN_S * _NS
        ):
            last.at_ns, last.num = now_ns, last.num + num
        else:
            self._events.append(_Event(kind, text, now_ns, num))

    def told(self) -> list[dict[str, Any]]:
        """The newest first."""
        return [
            {"at_ns": event.at_ns, "kind": event.kind, "text": event.text, "count": event.num}
            for event in reversed(self._events)
        ]
