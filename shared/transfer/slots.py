"""How many pulls read at once."""

import asyncio
from weakref import WeakValueDictionary


class Slots:
    """`per_source` for each source: its pulls share a link, and those of another source do not
    wait for it. A source is forgotten with its last pull."""

    def __init__(self, per_source: int) -> None:
        self._per_source = per_source
        self._by_source: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def of(self, source: str) -> asyncio.Semaphore:
        """`source`: its incarnation. The caller keeps what it gets for as long as it pulls."""
        return self._by_source.setdefault(source, asyncio.Semaphore(self._per_source))
