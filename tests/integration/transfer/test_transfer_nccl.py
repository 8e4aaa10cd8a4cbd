"""What nccl promises beyond the contract, over gloo: a link ends with its connection, a killed
source is lost at once, a reader gets what it may ask for and holds up nobody, and where there can
be no link the reason is told."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from shared.errors import CannotMapError, KVTransferError, PeerLostError
from shared.kv.columns import pack_ids
from shared.kv.layer_groups import layer_groups
from shared.mover.client import MoverClient
from shared.mover.copies import CopyError
from shared.mover.links import pairs
from shared.mover.links.gloo import GlooLink
from shared.mover.messages import MAX_CARD_BYTES, MAX_DIGESTS, Accept, Done
from shared.protocol import Attempt
from shared.transfer.blocks import linked
from shared.transfer.frame_stream import FrameStream
from shared.transfer.frames import Card, Frame, Give, Invite, Open, Opened, Pool, Read, Refused
from shared.transfer.ways.tcp import dial
from tests.support.fakes.faulty_link import FaultyLink
from tests.support.pairs.owner_processes import OwnerProcesses, kill, owner_processes
from tests.support.pairs.transfer_pair import (
    ATTEMPT,
    LAYOUT,
    NUM_BLOCKS,
    RUN,
    TICKET,
    Pair,
    content,
    until,
)

NUM_KILLS = int(os.environ.get("TRANSFER_KILLS", "4"))
"""`make hand-overs` sets it"""
pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60 + 3 * NUM_KILLS)]

LOST_WITHIN_S = 4.0
"""on a busy machine; a pull that waits for words of its source does so for 5 s"""
GROUPS = layer_groups(LAYOUT).all
CPU = torch.device("cpu")


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with Pair("nccl") as pair:
        yield pair


@pytest.fixture
def owners() -> Iterator[OwnerProcesses]:
    with owner_processes() as owners:
        yield owners


def offer_one(pair: Pair, block: int = 1, attempt: Attempt = ATTEMPT) -> None:
    offer = pair.p.transport.offer(attempt, TICKET)
    offer.publish(pair.p.piece(0, block))
    offer.seal(RUN)


def num_link_threads() -> int:
    return sum(thread.name == "kv-link" for thread in threading.enumerate())


@pytest.mark.clock
async def test_an_owner_killed_amid_a_read_is_lost_and_forgotten(
    pair: Pair, owners: OwnerProcesses, tmp_path: Path
) -> None:
    """What follows finds nobody. The next owner is read."""
    for _ in range(NUM_KILLS):
        owner = owners.make("nccl", tmp_path, LAYOUT.block_bytes, 24)
        gate = pair.p.plan.hold("half_read")
        request = pair.request(24, attempt=Attempt("rid", 0), source=owner.address)
        pull = asyncio.create_task(pair.d.transport.pull(request))
        try:
            async with asyncio.timeout(20):
                await gate.reached.wait()
            await kill(owner)
            await asyncio.sleep(0.05)
            assert not pull.done(), "a read still touches the destination"
        finally:
            gate.open.set()  # a thread waits there, and a test that fails waits for the thread
        async with asyncio.timeout(LOST_WITHIN_S):
            with pytest.raises(PeerLostError):
                await pull
            await until(lambda: all(link.is_closed for link in pair.d.links))
    assert len(pair.d.links) == NUM_KILLS
    offer_one(pair)
    assert (await pair.pull(1)).transport == "nccl"
    assert pair.received(0) == content(1, 0)


async def test_both_ends_of_a_link_end_with_the_source(pair: Pair) -> None:
    before = num_link_threads()
    offer_one(pair)
    await pair.pull(1)
    assert num_link_threads() == before + 2
    await pair.p.transport.close()
    await until(lambda: num_link_threads() == before)


async def test_a_link_that_failed_once_is_made_again(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection stood all the while."""
    offer_one(pair)
    with monkeypatch.context() as patch:
        patch.setattr(FaultyLink, "receive", only_the_probe)
        with pytest.raises(PeerLostError, match="the link to the source is lost: cut off"):
            await pair.pull(1)
    await pair.pull(1)
    assert pair.received(0) == content(1, 0)


def only_the_probe(link: FaultyLink, rows: torch.Tensor) -> None:
    link.num_received += 1
    if link.num_received > 1:
        raise CopyError("cut off")
    GlooLink.receive(link, rows)


async def test_a_pool_whose_probe_brings_other_bytes_is_not_read(pair: Pair) -> None:
    pair.p.memory.probe[0] ^= 1
    offer_one(pair)
    with pytest.raises(CannotMapError, match="brought other bytes"):
        await pair.pull(1)
    await until(lambda: all(link.is_closed for link in pair.d.links))


async def test_what_keeps_the_source_from_linking_is_told(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairs, "MAX_PAIRS", 0)
    offer_one(pair)
    with pytest.raises(CannotMapError, match="at the source, 0 workers are linked to this one"):
        await pair.pull(1)


async def test_what_keeps_decode_from_linking_is_told(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def accept(of: pairs.Pairs, question: Accept) -> Done:
        raise CopyError("no memory for a link")

    monkeypatch.setattr(pairs.Pairs, "accept", accept)
    before = num_link_threads()
    offer_one(pair)
    with pytest.raises(CannotMapError, match="no memory for a link"):
        await pair.pull(1)
    await until(lambda: num_link_threads() == before)


async def test_a_worker_that_links_by_something_else_is_not_linked_to(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair.p.transport._listeners[0].served._gives, "link", "nccl")  # type: ignore[attr-defined]
    offer_one(pair)
    with pytest.raises(CannotMapError, match="can be linked to by nccl only"):
        await pair.pull(1)


class Reader:
    """Says what it likes on a connection that shows the pool."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self.stream: FrameStream
        self.link = GlooLink("takes", "127.0.0.1", CPU)

    async def open(self) -> "Reader":
        terms = self._pair.d.terms
        self.stream = await terms.introduce(await dial(self._pair.p.transport.address, terms))
        await self.stream.send(Open(ATTEMPT, TICKET, "p.1", LAYOUT.fingerprint(), "map"))
        assert isinstance(await self.hear(), Opened)
        assert isinstance(await self.hear(), Pool)
        return self

    async def meet(self) -> "Reader":
        await self.stream.send(Invite())
        card = await self.hear()
        assert isinstance(card, Card)
        await self.stream.send(Card(self.link.card()))
        await asyncio.to_thread(self.link.meet, card.card)
        return self

    async def hear(self) -> Frame:
        return (await self.stream.receive())[0]

    async def ask(self, *blocks: int) -> None:
        await self.stream.send(Give(pack_ids(blocks), *GROUPS))

    async def take(self, num_bytes: int) -> bytes:
        room = torch.empty(num_bytes, dtype=torch.uint8)
        await asyncio.to_thread(self.link.receive, room)
        return room.numpy().tobytes()

    def leave(self) -> None:
        self.stream.close()
        self.link.close()


async def test_a_reader_gets_what_it_asks_for_in_that_order(pair: Pair) -> None:
    pair.p.transport.offer(ATTEMPT, TICKET)
    for block in (3, 5, 6):
        pair.p.write(block, content(block, 0))
    reader = await (await Reader(pair).open()).meet()
    await reader.ask(5, 3)
    await reader.ask()
    await reader.ask(6)
    assert await reader.take(2 * LAYOUT.block_bytes) == content(5, 0) + content(3, 0)
    probe = pair.p.memory.probe
    assert await reader.take(len(probe)) == bytes(probe)
    assert await reader.take(LAYOUT.block_bytes) == content(6, 0)
    reader.leave()


async def test_a_reader_that_takes_nothing_holds_up_no_other(pair: Pair) -> None:
    before = num_link_threads()
    offer_one(pair)
    idle = await (await Reader(pair).open()).meet()
    await idle.ask(1)
    await idle.ask(2)
    await pair.pull(1)
    assert pair.received(0) == content(1, 0)
    idle.leave()
    await until(lambda: num_link_threads() == before + 2)


@pytest.mark.parametrize(
    "said",
    [
        Give(pack_ids([NUM_BLOCKS]), *GROUPS),
        Give(b"abc", *GROUPS),
        Give(pack_ids([1]), GROUPS.num, 1),
        Give(pack_ids([1]), 0, 0),
        Give(pack_ids([1]), -1, 1),
        Give(pack_ids([1] * 2**20), *GROUPS),
        Give(pack_ids([1] * (MAX_DIGESTS + 1)), 0, 1),
        Read(0, 1, *GROUPS),
    ],
    ids=["block", "column", "group", "no_group", "before", "too_much", "too_many", "frame"],
)
async def test_what_a_reader_must_not_say_costs_its_link_alone(pair: Pair, said: Frame) -> None:
    offer_one(pair)
    reader = await (await Reader(pair).open()).meet()
    await reader.stream.send(said)
    assert await reader.hear() == Refused("damaged")
    reader.leave()
    await pair.pull(1)
    assert pair.received(0) == content(1, 0)


async def test_a_reader_that_asks_for_more_than_it_takes_is_hung_up_on(pair: Pair) -> None:
    offer_one(pair)
    reader = await (await Reader(pair).open()).meet()
    for _ in range(2 * linked.MAX_UNANSWERED):
        await reader.ask(1)
    await asyncio.sleep(0.1)
    reader.link.close()  # nothing else ends a wait of gloo's
    assert await reader.hear() == Refused("damaged")
    reader.leave()
    await pair.pull(1)


@pytest.mark.parametrize("card", [b"", b"x" * 136, bytes(136), b"x" * 10_000, b"x" * 300_000])
async def test_a_card_that_leads_nowhere_costs_its_link_alone(pair: Pair, card: bytes) -> None:
    """However long: a packet to the mover holds 128 KiB."""
    offer_one(pair)
    reader = await Reader(pair).open()
    await reader.stream.send(Invite())
    assert isinstance(await reader.hear(), Card)
    await reader.stream.send(Card(card))
    if len(card) > MAX_CARD_BYTES:
        assert await reader.hear() == Refused("damaged")
    else:
        with pytest.raises(PeerLostError):
            await reader.hear()
    reader.leave()
    await pair.pull(1)


async def test_one_who_was_not_invited_is_given_nothing(pair: Pair) -> None:
    offer_one(pair)
    reader = await Reader(pair).open()
    await reader.ask(1)
    assert await reader.hear() == Refused("damaged")
    reader.leave()
    await pair.pull(1)


async def test_an_invitation_that_is_not_accepted_lapses(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a reader that is silent would keep one of few links."""
    monkeypatch.setattr(linked, "ANSWER_S", 0.1)
    before = num_link_threads()
    offer_one(pair)
    reader = await Reader(pair).open()
    await reader.stream.send(Invite())
    assert isinstance(await reader.hear(), Card)
    assert await reader.hear() == Refused("damaged")
    await until(lambda: num_link_threads() == before)
    reader.leave()
    await pair.pull(1)


@pytest.mark.parametrize("again", [Invite(), Card(b"x" * 136)], ids=["invite", "card"])
async def test_a_link_is_made_once_over_a_connection(pair: Pair, again: Frame) -> None:
    offer_one(pair)
    reader = await (await Reader(pair).open()).meet()
    await reader.stream.send(again)
    assert await reader.hear() == Refused("damaged")
    reader.leave()
    await pair.pull(1)


async def test_a_source_whose_card_is_none_of_ours_is_not_linked_to(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def invite(of: MoverClient, peer: str, host: str) -> bytes:
        return b"x" * 300_000

    monkeypatch.setattr(MoverClient, "invite", invite)
    offer_one(pair)
    with pytest.raises(KVTransferError, match="a card of 300000 bytes"):
        await pair.pull(1)
    monkeypatch.undo()
    await pair.pull(1)


async def test_a_connection_that_breaks_amid_asking_ends_the_link_once(pair: Pair) -> None:
    """Whoever notices first: the pull, or what watches the connection."""
    for epoch in range(8):
        attempt = Attempt("broken", epoch)
        offer = pair.p.transport.offer(attempt, TICKET)
        offer.publish(pair.p.piece(0, 1, seed=epoch))
        gate = pair.d.plan.hold("read")
        offer.seal(RUN)
        pull = asyncio.create_task(pair.d.transport.pull(pair.request(1, attempt=attempt)))
        await gate.reached.wait()
        pair.p.terms.cut()
        gate.open.set()
        async with asyncio.timeout(LOST_WITHIN_S):
            with pytest.raises(KVTransferError):
                await pull
    await until(lambda: all(link.is_closed for link in pair.d.links))
    offer_one(pair)
    await pair.pull(1)


async def test_of_two_pulls_that_lose_one_link_the_way_is_blamed_by_one(pair: Pair) -> None:
    """Two failures in turn would leave it."""
    gate = pair.d.plan.hold("read")
    pulls = []
    for number in range(2):
        attempt = Attempt(f"r{number}", 1)
        offer_one(pair, block=number, attempt=attempt)
        request = replace(pair.request(1, attempt=attempt), block_ids=(number,))
        pulls.append(asyncio.create_task(pair.d.transport.pull(request)))
    await gate.reached.wait()
    (link,) = pair.d.links
    link.fails = True
    gate.open.set()
    ends = await asyncio.gather(*pulls, return_exceptions=True)
    assert sorted(isinstance(end, CannotMapError) for end in ends) == [False, True]
    assert all(isinstance(end, PeerLostError) for end in ends)


@pytest.mark.parametrize("limit", ["bytes", "digests"])
async def test_what_does_not_go_at_once_comes_in_parts(
    pair: Pair, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two pulls at a time, each block into its own place."""
    if limit == "bytes":
        monkeypatch.setattr(linked, "LINK_BYTES", 2 * LAYOUT.block_bytes)
    else:
        monkeypatch.setattr(linked, "MAX_DIGESTS", 3 * GROUPS.num)
    pulls = []
    for number, first in enumerate((0, 12)):
        attempt = Attempt(f"r{number}", 1)
        offer = pair.p.transport.offer(attempt, TICKET)
        offer.publish(pair.p.piece(0, *range(first, first + 11)))
        offer.seal(RUN)
        ours = tuple(range(first, first + 11))
        request = replace(pair.request(11, attempt=attempt), block_ids=ours)
        pulls.append(asyncio.create_task(pair.d.transport.pull(request)))
    await asyncio.gather(*pulls)
    for block in (*range(11), *range(12, 23)):
        assert pair.d.read(block) == content(block, 0)
    (link,) = pair.d.links
    assert link.num_received > 1 + 2 * 3, "in parts"
