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
    LinkMover,
    link_of,
    linked_pool,
)
from shared.transfer.offers import OfferTable
from shared.transfer.socket_transport import SocketTransport
from shared.transfer.terms import Terms
from shared.transfer.ways.network import NetworkWay
from shared.transfer.ways.tcp import PortListener
from shared.transfer.ways.way import OneWay

NcclWay = NetworkWay[LinkedPool]


def nccl_way(memory: KVMemory, mover: LinkMover, terms: Terms) -> NcclWay:
    """Blocks are taken as the source gives them."""
    begin = partial(linked_pool, mover, memory.layout, link_of(memory))
    return NetworkWay("nccl", memory.layout, begin, terms, in_bursts=terms.limits.in_bursts)


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
        OneWay(nccl_way(memory, mover, terms)),
        terms,
    )
