"""Notices what changed since the last look, for what says nothing when it does."""

from collections import Counter
from collections.abc import Mapping

from services.gateway.owner.view.events import Events

FIRST = "first"
"""the reason of an attempt that repeats none"""


class Changes:
    """Compares with the look before, once a second."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._drains: dict[str, bool] = {}
        self._store = ""
        """nothing until Redis has answered once: at the start it was not asked yet"""
        self._attempts: Counter[str] = Counter()

    def look(
        self, drains: Mapping[str, tuple[str, bool]], store: str, attempts: Mapping[str, int]
    ) -> None:
        """`drains`: by incarnation, a linked worker's id and whether it drains. `attempts`: so
        far, by reason."""
        for incarnation, (worker_id, drains_now) in drains.items():
            if drains_now != self._drains.get(incarnation, False):
                what = "drains" if drains_now else "serves again"
                self._events.note("worker", f"{worker_id} {what}")
        self._drains = {incarnation: now for incarnation, (_, now) in drains.items()}
        if self._store and store != self._store:
            self._events.note("redis", "Redis is back" if store == "ok" else f"Redis: {store}")
        if self._store or store == "ok":
            self._store = store
        for reason, total in attempts.items():
            num = total - self._attempts[reason]
            if num and reason != FIRST:
                self._events.note("retry", f"attempts repeated after {reason}", num)
        self._attempts = Counter(attempts)
