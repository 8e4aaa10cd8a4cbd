"""Chooses a way for each source: mapped where its pool can be mapped and a probe of it reads the
right bytes, else tcp.

The choice is made when a source is first pulled from, and stays. Whatever is chosen, the attempt
is one offer of the source, with one lease and one release.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from shared.errors import CannotMapError
from shared.transfer.blocks.copied import ShownPool
from shared.transfer.blocks.mapping import BlockMover
from shared.transfer.blocks.payloads import Stager, payloads_of
from shared.transfer.blocks.sent import SentBlocks
from shared.transfer.offers import OfferTable
from shared.transfer.socket_transport import SocketTransport
from shared.transfer.terms import Terms
from shared.transfer.transport import PullRequest
from shared.transfer.ways.mapped import MappedWay, SocketListener
from shared.transfer.ways.tcp import PortListener, TcpWay
from shared.transfer.ways.way import Choice, Way

logger = logging.getLogger(__name__)


class Mover(BlockMover, Stager, Protocol):
    """What the mover of a worker does for either way."""


MAX_SOURCES = 256
"""whose choices are remembered; the oldest is made again"""


class AutoWays:
    """Keeps the promise of `Ways`."""

    def __init__(self, mapped: MappedWay, tcp: TcpWay) -> None:
        self._mapped = mapped
        self._tcp = tcp
        self._chosen: dict[str, Choice] = {}
        """by the incarnation of the source"""

    @property
    def names(self) -> Sequence[str]:
        return [self._mapped.name, self._tcp.name]

    async def of(self, request: PullRequest) -> Choice:
        chosen = self._chosen.get(request.source_incarnation)
        return chosen or await self._choose(request)

    def decided(self, request: PullRequest) -> Way:
        likely = self._tcp if request.source.port else self._mapped
        chosen = self._chosen.get(request.source_incarnation)
        return chosen.way if chosen else likely

    async def close(self) -> None:
        await self._mapped.close()
        await self._tcp.close()

    async def _choose(self, request: PullRequest) -> Choice:
        """CannotMapError if that was the only way."""
        try:
            mapping = await self._mapped.mappings.of(request)
        except CannotMapError as error:
            if not request.source.port:
                raise
            return self._keep(request, Choice(self._tcp, str(error)))
        return self._keep(request, Choice(self._mapped, str(mapping.probed)))

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
    mapped = [SocketListener(pool, folder)] if pool.can_be_mapped else []
    return SocketTransport(
        incarnation,
        OfferTable(memory, terms.limits.lease_s, terms.clock, mover),
        [*mapped, PortListener(sent, listen_at)],
        AutoWays(MappedWay(memory.layout, mover, terms), TcpWay(memory, payloads, terms)),
        terms,
    )
