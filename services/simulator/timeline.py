"""The core of every simulation here: a clock, and what is to happen when.

Nothing else: what happens belongs to those that put it here. Whatever is due at the same second
happens in the order in which it was put.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

Action = Callable[[], None]


class Timeline:
    """Simulated time. It moves from event to event."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Action]] = []
        self._order = count()

    def at(self, when_s: float, action: Action) -> None:
        """Do it then. What is to happen may not lie in the past."""
        assert when_s >= self.now_s, f"{when_s} is before {self.now_s}"
        heappush(self._events, (when_s, next(self._order), action))

    def after(self, seconds: float, action: Action) -> None:
        """Do it `seconds` from now."""
        self.at(self.now_s + seconds, action)

    def every(self, seconds: float, action: Action) -> None:
        """Do it again and again, for the first time `seconds` from now."""
        assert seconds > 0, "time would stand still"

        def again() -> None:
            action()
            self.after(seconds, again)

        self.after(seconds, again)

    def run(self, until_s: float) -> None:
        """Everything that is due until then; the clock then shows `until_s`."""
        events = self._events
        while events and events[0][0] <= until_s:
            self.now_s, _, action = heappop(events)
            action()
        self.now_s = max(self.now_s, until_s)
