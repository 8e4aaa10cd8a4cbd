"""Chooses a way for each source: mapped where its pool can be mapped and a probe of it reads the
right bytes; else nixl, likewise, where both ends have it; else nccl, likewise, between two GPUs,
once they are linked; else tcp.

The choice is made when a source is first pulled from, and stays until its way fails twice in turn,
or a link comes to stand or is lost. Then the next best is taken, and after some minutes the choice
is made again. Whatever is chosen, the attempt is one offer of the source, with one lease and one
release.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Protocol

from shared.clock import Clock
from shared.errors import CannotMapError, KVTransferError
from shared.mover.agent import MISSING, is_installed
from shared.tasks import Tasks
from shared.transfer.blocks.copied import ShownPool
from shared.transfer.blocks.joined import AgentMover, RegisteredPool
from shared.transfer.blocks.linked import Gives, LinkMover
from shared.transfer.blocks.payloads import Stager, payloads_of
from shared.transfer.blocks.sent import SentBlocks
from shared.transfer.offers import OfferTable
from shared.transfer.socket_transport import SocketTransport
from shared.transfer.terms import Terms
from shared.transfer.transport import PullRequest
from shared.transfer.ways.failed_ways import LEAVE_S, FailedWays
from shared.transfer.ways.mapped import MappedWay, SocketListener
from shared.transfer.ways.nccl import NcclWay, nccl_way
from shared.transfer.ways.nixl import NixlWay, SentOrRead, nixl_way
from shared.transfer.ways.tcp import PortListener, TcpWay
from shared.transfer.ways.way import Choice, Way

logger = logging.getLogger(__name__)


class Mover(AgentMover, LinkMover, Stager, Protocol):
    """What the mover of a worker does for all ways."""


LINKING = "it is being linked to"
MOST_APART_S = 86_400.0
"""between two attempts to link to a source"""
MAX_SOURCES = 256
"""whose choices are remembered; the oldest is made again"""


@dataclass
class _Source:
    """What is known of the ways to it."""

    failed: FailedWays
    chosen: Choice | None = None
    until_s: float = inf
    """then it is chosen again"""
    linking: "asyncio.Task[None] | None" = None
    """while its link is made"""
    num_not_linked: int = 0
    """times in a row that it could not be linked to"""
    why_not_linked: str = ""
    """the last time"""
    link_again_s: float = 0.0
    """not before"""


class AutoWays:
    """Keeps the promise of `Ways`."""

    def __init__(
        self,
        mapped: MappedWay,
        nixl: NixlWay | None,
        nccl: NcclWay | None,
        tcp: TcpWay,
        clock: Clock,
    ) -> None:
        """`nixl`: None where it is not installed. `nccl`: None where there is no GPU."""
        self._mapped = mapped
        self._nixl = nixl
        self._nccl = nccl
        self._tcp = tcp
        self._clock = clock
        self._tasks = Tasks()
        self._sources: dict[str, _Source] = {}
        """by incarnation"""

    @property
    def names(self) -> Sequence[str]:
        return [way.name for way in self._all]

    async def of(self, request: PullRequest) -> Choice:
        source = self._source(request)
        if self._clock.monotonic_s() >= source.until_s or self._has_lost_link(request, source):
            source.chosen = None
        return source.chosen or await self._choose(request, source)

    def decided(self, request: PullRequest) -> Way:
        chosen = self._source(request).chosen
        likely = self._tcp if request.source.port else self._mapped
        return chosen.way if chosen else likely

    def note(self, request: PullRequest, way: Way, error: KVTransferError | None) -> None:
        """Sources that have but one way keep it."""
        if way is self._tcp or not request.source.port:
            return
        source = self._source(request)
        if source.failed.note(way.name, error):
            source.chosen = None
            logger.warning(
                "KV of %s (%s) does not come by %s for the next %.0f s: %s",
                request.source_incarnation,
                request.source,
                way.name,
                LEAVE_S,
                source.failed.why_left(way.name),
            )

    async def close(self) -> None:
        await self._tasks.close()
        for way in self._all:
            await way.close()

    @property
    def _all(self) -> list[Way]:
        """The best one first."""
        ways = (self._mapped, self._nixl, self._nccl, self._tcp)
        return [way for way in ways if way is not None]

    def _source(self, request: PullRequest) -> _Source:
        incarnation = request.source_incarnation
        if incarnation not in self._sources:
            self._sources[incarnation] = _Source(FailedWays(self._clock))
            if len(self._sources) > MAX_SOURCES:
                del self._sources[next(iter(self._sources))]
        return self._sources[incarnation]

    async def _choose(self, request: PullRequest, source: _Source) -> Choice:
        """CannotMapError if that was the only way."""
        why_not = source.failed.why_left(self._mapped.name)
        if not why_not:
            try:
                mapping = await self._mapped.mappings.of(request)
            except CannotMapError as error:
                if not request.source.port:
                    raise
                why_not = str(error)
            else:
                return self._keep(request, source, Choice(self._mapped, str(mapping.probed)))
        return await self._choose_without(request, source, why_not)

    async def _choose_without(
        self, request: PullRequest, source: _Source, why_not_mapped: str
    ) -> Choice:
        """Between two hosts, or as good as that."""
        joined = await self._joined(request, source)
        if isinstance(joined, Choice):
            why = f"{why_not_mapped}; {joined.why}"
            return self._keep(request, source, joined._replace(why=why))
        why_not = [why_not_mapped, joined]
        if self._nccl is not None:
            reason = source.failed.why_left(self._nccl.name)
            linked = self._nccl.pools.standing(request.source_incarnation)
            if linked is not None and not reason:
                why = "; ".join([*why_not, str(linked.probed)])
                return self._keep(request, source, Choice(self._nccl, why))
            why_not.append(reason or self._begin_to_link(request, source, self._nccl))
        return self._keep(request, source, Choice(self._tcp, "; ".join(why_not)))

    async def _joined(self, request: PullRequest, source: _Source) -> Choice | str:
        """By nixl, or why not."""
        if self._nixl is None:
            return MISSING
        if reason := source.failed.why_left(self._nixl.name):
            return reason
        try:
            return Choice(self._nixl, str((await self._nixl.pools.of(request)).probed))
        except CannotMapError as error:
            return str(error)

    def _has_lost_link(self, request: PullRequest, source: _Source) -> bool:
        if self._nccl is None or source.chosen is None or source.chosen.way is not self._nccl:
            return False
        return self._nccl.pools.standing(request.source_incarnation) is None

    def _begin_to_link(self, request: PullRequest, source: _Source, nccl: NcclWay) -> str:
        """Why the source is not linked to. Two ends take a second to meet, and much longer to find
        that they cannot; nobody waits for it."""
        if source.linking is None and self._clock.monotonic_s() >= source.link_again_s:
            source.linking = self._tasks.start(self._link(request, source, nccl))
        return LINKING if source.linking is not None else source.why_not_linked

    async def _link(self, request: PullRequest, source: _Source, nccl: NcclWay) -> None:
        """Then the way is chosen again. After each failure in a row it is left for twice as long:
        what cannot meet once seldom can later, and NCCL loses descriptors each time."""
        try:
            await nccl.pools.of(request)
        except CannotMapError as error:
            source.num_not_linked += 1
            wait_s = min(LEAVE_S * 2 ** (source.num_not_linked - 1), MOST_APART_S)
            source.link_again_s = self._clock.monotonic_s() + wait_s
            source.why_not_linked = str(error)
        except KVTransferError as error:  # this attempt is over; the next one tries again
            source.why_not_linked = str(error)
        else:
            source.num_not_linked = 0
        finally:
            source.linking = source.chosen = None

    def _keep(self, request: PullRequest, source: _Source, choice: Choice) -> Choice:
        """The first of several pulls that choose at once decides, and says so."""
        if source.chosen is not None:
            return source.chosen
        way, why = source.chosen = choice
        again_s = source.link_again_s if source.num_not_linked else inf
        source.until_s = min(source.failed.until_s, again_s)
        incarnation = request.source_incarnation
        logger.info("KV of %s (%s) comes by %s: %s", incarnation, request.source, way.name, why)
        return choice


def auto_transport(
    pool: ShownPool,
    incarnation: str,
    mover: Mover,
    *,
    folder: Path,
    listen_at: tuple[str, int] = ("127.0.0.1", 0),
    terms: Terms | None = None,
) -> SocketTransport:
    """Between any two workers. Pool and mover stay the caller's and outlive the transport."""
    terms = terms or Terms()
    memory = pool.memory
    payloads = payloads_of(memory, mover)
    sent = SentBlocks(memory.layout, payloads, terms.traffic)
    gives = Gives(memory, mover)
    registered = RegisteredPool(memory, mover, incarnation, gives, pool.num_ranks)
    served = SentOrRead(sent, registered)
    mapped = [SocketListener(pool, folder)] if pool.can_be_mapped else []
    nixl = nixl_way(memory.layout, incarnation, mover, terms) if is_installed() else None
    nccl = None if memory.holds_blocks else nccl_way(memory, mover, terms)
    return SocketTransport(
        incarnation,
        OfferTable(memory, terms.limits.lease_s, terms.clock, mover),
        [*mapped, PortListener(served, listen_at)],
        AutoWays(
            MappedWay(memory.layout, mover, terms),
            nixl,
            nccl,
            TcpWay(memory, payloads, terms),
            terms.clock,
        ),
        terms,
    )
