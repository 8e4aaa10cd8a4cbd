"""Takes waiting requests from the pool's backlog while this worker has room.

Idle dispatch never comes here: a gateway says how much waits on its PING, and only then does
the worker ask Redis.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from shared.clock import SystemClock
from shared.link.server import Peer
from shared.loops import Loops
from shared.protocol import Pull
from shared.queue.backlog import Backlog
from shared.queue.room import Room
from shared.state.kv_feed import KVPublisher
from shared.worker.state import WorkerState

PAUSE_S = 0.02
"""between two looks while requests wait"""
LOOK_AGAIN_S = 0.1
"""after nothing was found that may come: another worker may have taken what held it up"""


class _Offer(NamedTuple):
    """What this worker can take now."""

    takes_short: bool
    """one as long as the last that found no room"""
    long_place: int


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
        """room without which no short one is popped: the last does not fit before there is that"""
        self._found_none: tuple[_Offer, float] | None = None
        """to what offer nothing could come, and when; None: not known"""
        self._num_words = 0
        """of gateways whose requests wait"""
        self._clock = SystemClock()
        self._wake = asyncio.Event()

    def note(self, peer: Peer, num_backlogged: int) -> None:
        """A gateway's word on how many of its requests wait."""
        self._waiting[peer.incarnation] = num_backlogged
        if num_backlogged:
            self._num_words += 1
            self._found_none = None
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
        offer = _Offer(room.tokens >= self._needed_tokens, room.long_place)
        if not (offer.takes_short or room.takes_long()) or not self._may_find_one(offer):
            return
        num_words = self._num_words
        if await self._pop(room if offer.takes_short else room._replace(tokens=0)):
            return
        if self._num_words != num_words:
            return  # what came while Redis answered may not be in its answer
        if offer.takes_short and room.takes_long(early=False):
            self._waiting.clear()
        else:
            self._found_none = offer, self._clock.monotonic_s()

    def _may_find_one(self, offer: _Offer) -> bool:
        """Where nothing that waits could come there must be more room, or time has gone by."""
        if self._found_none is None:
            return True
        before, at_s = self._found_none
        more = offer.takes_short > before.takes_short or offer.long_place > before.long_place
        return more or self._clock.monotonic_s() - at_s >= LOOK_AGAIN_S

    async def _pop(self, room: Room) -> bool:
        """False when nothing waits that may come, as far as Redis knows. What is popped and finds
        no room has lost its place in the order of all gateways, so it is one request at most."""
        self._state.count("backlog_pops")
        entry = await self._backlog.pop(self._cache.held, room)
        self._found_none = None
        if room.tokens:
            self._needed_tokens = 1
        if entry is None:
            return False
        if room.tokens < entry.num_tokens <= room.long_tokens:
            self._needed_tokens = entry.num_tokens
        for peer in self._peers():
            if peer.incarnation == entry.gateway_incarnation:
                peer.send(Pull(entry.rid, self._state.incarnation))
        return True
