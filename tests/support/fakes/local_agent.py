"""An agent that reads pools of its own process, at once: what is to be shown is not nixl, but what
is asked of it."""

import ctypes
from typing import Any

from shared.mover.agent import CARDS, Card
from shared.mover.copies import CopyError, Regions
from shared.mover.reads import Reads


class LocalAgent:
    """Keeps the promise of `Agent`."""

    def __init__(self, name: str, regions: Regions) -> None:
        self.name = name
        self._regions = regions
        self._joined: dict[str, Card] = {}

    def card(self) -> bytes:
        pool = self._regions.pool
        return CARDS.encode(
            Card(pool.address, pool.num_bytes, "DRAM", 0, self.name.encode()),
        )

    def join(self, source: str, card: bytes, num_bytes: int) -> None:
        theirs: Card = CARDS.decode(card)
        if theirs.num_bytes < num_bytes or theirs.metadata != source.encode():
            raise CopyError("the source's card is not one of a pool like ours")
        self._joined[source] = theirs

    def leave(self, source: str) -> None:
        del self._joined[source]

    def begin(self, source: str, reads: Reads) -> Any:
        theirs, pool, room = self._joined[source], self._regions.pool, self._regions.probe_room
        for offset, address, num_bytes in zip(*(column.tolist() for column in reads), strict=True):
            assert 0 <= offset <= theirs.num_bytes - num_bytes
            assert any(
                region.address <= address <= region.address + region.num_bytes - num_bytes
                for region in (pool, room)
            )
            ctypes.memmove(address, theirs.address + offset, num_bytes)
        return None

    def is_done(self, handle: Any) -> bool:
        del handle
        return True

    def progress(self) -> None:
        """Nobody connects."""

    def close(self) -> None:
        self._joined.clear()
