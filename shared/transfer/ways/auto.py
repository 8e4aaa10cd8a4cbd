"""Chooses a way for each source: mapped where its pool can be mapped and a probe of it reads the
right bytes; else nixl, likewise, where both ends have it; else tcp.

The choice is made when a source is first pulled from, and stays. Whatever is chosen, the attempt
is one offer of the source, with one lease and one release.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from shared.errors import CannotMapError
from shared.mover.agent import MISSING, is_installed
from shared.transfer.blocks.copied import ShownPool
from shared.transfer.blocks.joined import AgentMover, RegisteredPool
from shared.transfer.blocks.payloads import Stager, payloads_of
from shared.transfer.blocks.sent import SentBlocks
from shared.transfer.offers import OfferTable
from shared.transfer.socket_transport import SocketTransport
from shared.transfer.terms import Terms
from shared.transfer.transport import PullRequest
from shared.transfer.ways.mapped import MappedWay, SocketListener
from shared.transfer.ways.nixl import NixlWay, SentOrRead
from shared.transfer.ways.tcp import PortListener, TcpWay
from shared.transfer.ways.way import Choice, Way

logger = logging.getLogger(__name__)


class Mover(AgentMover, Stager, Protocol):
    """What the mover of a worker does for all ways."""


MAX_SOURCES = 256
"""whose choices are remembered; the oldest is made again"""


class AutoWays:
    """Keeps the promise of `Ways`."""

    def __init__(self, mapped: MappedWay, nixl: NixlWay | None, tcp: TcpWay) -> None:
        """`nixl`: None where it is not installed."""
        self._mapped = mapped
        self._nixl = nixl
        self._tcp = tcp
        self._chosen: dict[str, Choice] = {}
        """by the incarnation of the source"""

    @property
    def names(self) -> Sequence[str]:
        return [way.name for way in (self._mapped, self._nixl, self._tcp) if way]

    async def of(self, request: PullRequest) -> Choice:
        chosen = self._chosen.get(request.source_incarnation)
        return chosen or await self._choose(request)

    def decided(self, request: PullRequest) -> Way:
        likely = self._tcp if request.source.port else self._mapped
        chosen = self._chosen.get(request.source_incarnation)
        return chosen.way if chosen else likely

    async def close(self) -> None:
        for way in (self._mapped, self._nixl, self._tcp):
            if way is not None:
                await way.close()

    async def _choose(self, request: PullRequest) -> Choice:
        """CannotMapError if that was the only way."""
        try:
            mapping = await self._mapped.mappings.of(request)
        except CannotMapError as error:
            if not request.source.port:
                raise
            return await self._choose_without(request, str(error))
        return self._keep(request, Choice(self._mapped, str(mapping.probed)))

    async def _choose_without(self, request: PullRequest, why_not_mapped: str) -> Choice:
        """Between two hosts, or as good as that."""
        if self._nixl is None:
            return self._keep(request, Choice(self._tcp, f"{why_not_mapped}; {MISSING}"))
        try:
            pool = await self._nixl.pools.of(request)
        except CannotMapError as error:
            return self._keep(request, Choice(self._tcp, f"{why_not_mapped}; {error}"))
        return self._keep(request, Choice(self._nixl, f"{why_not_mapped}; {pool.probed}"))

    def _keep(self, request: PullRequest, choice: Choice) -> Choice:
        """The first of several pulls that choose at once decides, and says so."""
        source = request.source_incarnation
        if source in self._chosen:
            return self._chosen[source]
        way, why = choice
        logger.info("KV of %s (%s) comes by %s: %s", source, request.source, way.name, why)
        self._chosen[source] = choice
        if len(self._chosen) > MAX_SOURCES:
            del self._chosen[next(iter(self._chosen))]
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
    served = SentOrRead(sent, RegisteredPool(memory, mover, incarnation))
    mapped = [SocketListener(pool, folder)] if pool.can_be_mapped else []
    nixl = NixlWay(memory.layout, incarnation, mover, terms) if is_installed() else None
    return SocketTransport(
        incarnation,
        OfferTable(memory, terms.limits.lease_s, terms.clock, mover),
        [*mapped, PortListener(served, listen_at)],
        AutoWays(MappedWay(memory.layout, mover, terms), nixl, TcpWay(memory, payloads, terms)),
        terms,
    )
