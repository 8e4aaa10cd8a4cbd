"""Takes waiting requests from the pool's backlog while this worker has room.

Idle dispatch never comes here: a gateway says how much waits on its PING, and only then does
the worker ask Redis.
"""

import asyncio
from collections.abc import Callable

from shared.link.server import Peer
from shared.loops import Loops
from shared.protocol import Pull
from shared.queue.backlog import Backlog
from shared.queue.room import Room
from shared.state.kv_feed import KVPublisher
from shared.worker.state import WorkerState

PAUSE_S = 0.02
"""between two looks while requests wait"""


class BacklogPuller:
    """One pop at a time; the owner of what was popped is asked for it on its link."""

    def __init__(
        self,
        state: WorkerState,
        backlog: Backlog,
        cache: KVPublisher,
        peers: Callable[[], list[Peer]],
    ) -> None:
        self._state = state
        self._backlog = backlog
        self._cache = cache
        self._peers = peers
        self._waiting: dict[str, int] = {}
        self._needed_tokens = 1
        """room without which nothing is popped: the last one does not fit before there is that"""
        self._found_none_at: int | None = None
        """the place for a long prompt that there was when only such waited"""
        self._wake = asyncio.Event()

    def note(self, peer: Peer, num_backlogged: int) -> None:
        """A gateway's word on how many of its requests wait."""
        self._waiting[peer.incarnation] = num_backlogged
        if num_backlogged:
            self._found_none_at = None
            self._wake.set()

    def forget(self, peer: Peer) -> None:
        self._waiting.pop(peer.incarnation, None)

    def start(self, loops: Loops) -> None:
        loops.start("backlog", self._look, PAUSE_S)

    async def _look(self) -> None:
        await self._wake.wait()
        idle = self._state.draining or self._state.stalled
        if idle or not any(self._waiting.values()):
            self._wake.clear()
            return
        room = self._state.room
        if room.tokens < self._needed_tokens or not self._may_find_one(room):
            return
        if not await self._pop(room):
            if room.takes_long(early=False):
                self._waiting.clear()
            else:
                self._found_none_at = room.long_place

    def _may_find_one(self, room: Room) -> bool:
        """Where only long prompts wait there must be a place for them."""
        return self._found_none_at is None or room.long_place > self._found_none_at

    async def _pop(self, room: Room) -> bool:
        """False when nothing waits that may come, as far as Redis knows. What is popped and finds
        no room has lost its place in the order of all gateways, so it is one request at most."""
        self._state.count("backlog_pops")
        entry = await self._backlog.pop(self._cache.held, room)
        self._needed_tokens, self._found_none_at = 1, None
        if entry is None:
            return False
        if room.tokens < entry.num_tokens <= room.long_tokens:
            self._needed_tokens = entry.num_tokens
        for peer in self._peers():
            if peer.incarnation == entry.gateway_incarnation:
                peer.send(Pull(entry.rid, self._state.incarnation))
        return True
