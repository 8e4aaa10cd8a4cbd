"""Cards by which a pool is read: what they may say, before nixl hears of it."""

import numpy as np
import pytest

from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory
from shared.mover.agent import CARDS, Card, NixlAgent, is_installed
from shared.mover.copies import CopyError
from shared.mover.host_copies import HostCopies
from shared.mover.reads import Reads

LAYOUT = KVLayout("m", "float32", 3, 2, 2, 8, 4)
RIGHT = Card(2**40, 2**30, "VRAM", 7, b"")
needs_nixl = pytest.mark.skipif(not is_installed(), reason="needs nixl")


@pytest.mark.parametrize(
    ("card", "has"),
    [
        (RIGHT, True),
        (Card(0, 2**30, "DRAM", 0, b""), True),
        (Card(2**40, 2**30 - 1, "VRAM", 0, b""), False),
        (Card(-1, 2**40, "VRAM", 0, b""), False),
        (Card(2**63 - 2**30, 2**30, "VRAM", 0, b""), False),
        (Card(0, 2**64 - 1, "VRAM", 0, b""), False),
        (Card(2**40, 2**30, "FILE", 0, b""), False),
        (Card(2**40, 2**30, "VRAM", -1, b""), False),
        (Card(2**40, 2**30, "VRAM", 2**63, b""), False),
    ],
)
def test_a_card_is_of_memory_that_there_may_be(card: Card, has: bool) -> None:
    assert card.has(2**30) is has


def agent_of(name: str) -> tuple[NixlAgent, HostCopies]:
    copies = HostCopies(KVMemory.create(LAYOUT, 4))
    return NixlAgent(name, copies.regions()), copies


@needs_nixl
def test_a_card_of_another_worker_leaves_nothing_behind() -> None:
    """That worker can be joined afterwards."""
    ours, our_pool = agent_of("d.1/0")
    other, their_pool = agent_of("q.1/0")
    with pytest.raises(CopyError, match="one of another worker"):
        ours.join("p.1/0", other.card(), 1)
    ours.join("q.1/0", other.card(), 1)
    with pytest.raises(CopyError, match="one of another worker"):
        ours.join("p.1/0", other.card(), 1)
    room = ours._regions.probe_room.address
    handle = ours.begin("q.1/0", Reads(*(np.array([number]) for number in (0, room, 8))))
    while not ours.is_done(handle):
        other.progress()
    assert our_pool.share == their_pool.share


@needs_nixl
def test_a_card_that_points_nowhere_is_refused() -> None:
    ours, our_pool = agent_of("d.1/0")
    other, their_pool = agent_of("q.1/0")
    card: Card = CARDS.decode(other.card())
    for address in (2**63, 2**64 - 1):
        wrong = Card(address, card.num_bytes, card.kind, card.device, card.metadata)
        with pytest.raises(CopyError, match="not one of a pool like ours"):
            ours.join("q.1/0", CARDS.encode(wrong), 1)
    assert our_pool.share == their_pool.share
