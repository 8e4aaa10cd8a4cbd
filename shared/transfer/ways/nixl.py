"""KV blocks over RDMA: decode's mover reads them out of prefill's pool, through nixl.

What is said there is said as over tcp, at the same port (`pull`, `session`). The bytes do not cross
that connection (`blocks.joined`).
"""

from functools import partial

from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory
from shared.transfer.blocks.joined import (
    AgentMover,
    JoinedPool,
    RegisteredPool,
    joined_pool,
)
from shared.transfer.blocks.manifest import Part
from shared.transfer.blocks.sent import SentBlocks
from shared.transfer.frame_stream import FrameStream
from shared.transfer.offers import LiveOffer, OfferTable
from shared.transfer.socket_transport import SocketTransport
from shared.transfer.terms import Terms
from shared.transfer.ways.network import NetworkWay
from shared.transfer.ways.tcp import PortListener
from shared.transfer.ways.way import OneWay

NixlWay = NetworkWay[JoinedPool]


def nixl_way(layout: KVLayout, incarnation: str, mover: AgentMover, terms: Terms) -> NixlWay:
    """Blocks are read out of the source's pool. `incarnation`: ours."""
    begin = partial(joined_pool, mover, incarnation)
    return NetworkWay("nixl", layout, begin, terms, in_bursts=False)


class SentOrRead:
    """Keeps the promise of `Served` where readers have the choice."""

    def __init__(self, sent: SentBlocks, registered: RegisteredPool) -> None:
        self._sent = sent
        self._registered = registered

    async def send(self, stream: FrameStream, offer: LiveOffer, part: Part) -> None:
        await self._sent.send(stream, offer, part)

    async def show_pool(self, stream: FrameStream) -> None:
        await self._registered.show_pool(stream)


def nixl_transport(
    memory: KVMemory,
    incarnation: str,
    mover: AgentMover,
    *,
    num_ranks: int = 1,
    listen_at: tuple[str, int] = ("127.0.0.1", 0),
    terms: Terms | None = None,
) -> SocketTransport:
    """Between workers that RDMA connects. Pool and mover stay the caller's and outlive the
    transport. `num_ranks`: that hold our blocks."""
    terms = terms or Terms()
    served = RegisteredPool(memory, mover, incarnation, num_ranks=num_ranks)
    return SocketTransport(
        incarnation,
        OfferTable(memory, terms.limits.lease_s, terms.clock, mover),
        [PortListener(served, listen_at)],
        OneWay(nixl_way(memory.layout, incarnation, mover, terms)),
        terms,
    )
