"""KV blocks over NCCL: prefill's mover gives them to decode's, over a link of the two.

What is said there is said as over tcp, at the same port (`pull`, `session`). The bytes do not cross
that connection (`blocks.linked`). Where blocks lie in host memory the link is one of gloo.
"""

from functools import partial

from shared.kv.memory import KVMemory
from shared.transfer.blocks.linked import (
    Gives,
    LinkedBlocks,
    LinkedPool,
    LinkedReads,
    LinkMover,
    link_of,
    linked_pool,
)
from shared.transfer.blocks.progress import Progress
from shared.transfer.blocks.standing import Standing
from shared.transfer.frame_stream import FrameStream
from shared.transfer.offers import OfferTable
from shared.transfer.socket_transport import SocketTransport
from shared.transfer.terms import Terms
from shared.transfer.ways.tcp import PortListener, dial
from shared.transfer.ways.way import OneWay
from shared.transfer_address import TransferAddress


class NcclWay:
    """Keeps the promise of `Way`; blocks are taken as the source gives them."""

    name = LinkedReads.name

    def __init__(self, memory: KVMemory, mover: LinkMover, terms: Terms) -> None:
        self._layout = memory.layout
        self._terms = terms
        self.pools: Standing[LinkedPool] = Standing(
            memory.layout.fingerprint(),
            self.connect,
            partial(linked_pool, mover, memory.layout, link_of(memory)),
        )

    async def connect(self, source: TransferAddress) -> FrameStream:
        return await self._terms.introduce(await dial(source, self._terms))

    def reads(self, progress: Progress, stream: FrameStream) -> LinkedReads:
        terms = self._terms
        return LinkedReads(progress, stream, self.pools, self._layout, terms.traffic, terms.limits)

    async def close(self) -> None:
        await self.pools.close()


def nccl_transport(
    memory: KVMemory,
    incarnation: str,
    mover: LinkMover,
    *,
    listen_at: tuple[str, int] = ("127.0.0.1", 0),
    terms: Terms | None = None,
) -> SocketTransport:
    """Between workers whose movers can link. Pool and mover stay the caller's and outlive the
    transport."""
    terms = terms or Terms()
    served = LinkedBlocks(memory, Gives(memory, mover))
    return SocketTransport(
        incarnation,
        OfferTable(memory, terms.limits.lease_s, terms.clock, mover),
        [PortListener(served, listen_at)],
        OneWay(NcclWay(memory, mover, terms)),
        terms,
    )
