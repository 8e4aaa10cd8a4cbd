"""The promise of KVTransport, kept by `memory`, and by `tcp`, `mapped`, `nixl` and `nccl` over real
sockets and agents."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from shared.errors import PeerLostError, StaleBlocksError
from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory
from shared.protocol import Attempt, TokenRun
from shared.transfer.blocks.copied import ShownPool
from shared.transfer.limits import TransferLimits
from shared.transfer.transport import KVTransport
from shared.transfer.ways.auto import auto_transport
from shared.transfer.ways.mapped import mapped_transport
from shared.transfer.ways.nccl import nccl_transport
from shared.transfer.ways.nixl import nixl_transport
from shared.transfer.ways.tcp import tcp_transport
from tests.support.fakes.memory_transport import MemoryTransport
from tests.support.pairs.transfer_pair import (
    ATTEMPT,
    KINDS,
    LAYOUT,
    NUM_BLOCKS,
    RUN,
    TICKET,
    Kind,
    Pair,
    content,
    until,
)

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


@pytest.fixture(params=KINDS)
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    async with Pair(request.param) as pair:
        yield pair


async def arrived(pair: Pair, logical: int, expected: bytes) -> None:
    await until(lambda: pair.received(logical) == expected)


async def opened(pair: Pair, num_pulls: int) -> None:
    await until(lambda: pair.d.plan.passed["open"] == num_pulls)


async def test_pull_of_what_is_sealed_already(pair: Pair) -> None:
    offer = pair.p.transport.offer(ATTEMPT, TICKET)
    offer.publish(pair.p.piece(0, 5, 6, 2))
    offer.publish(pair.p.piece(3, 9))
    offer.seal(RUN)
    pulled = await pair.pull(4)
    assert [pair.received(i) for i in range(4)] == [content(b, 0) for b in (5, 6, 2, 9)]
    assert pulled.run == RUN
    assert (pulled.num_blocks, pulled.num_reread) == (4, 0)
    assert pulled.num_bytes == 4 * LAYOUT.block_bytes
    assert max(pulled.start_ns, pulled.sealed_ns) <= pulled.end_ns
    await until(lambda: pair.p.released == [ATTEMPT])
    with pytest.raises(PeerLostError):
        await pair.pull(4)
    assert pair.p.released == [ATTEMPT]


async def test_pull_overlaps_prefill(pair: Pair) -> None:
    """Piece by piece: what is published is read before the next piece exists."""
    offer = pair.p.transport.offer(ATTEMPT, TICKET)
    pull = pair.pull(3)
    for logical in range(3):
        piece = pair.p.piece(logical, logical + 1, seed=logical)
        offer.publish(piece)
        await arrived(pair, logical, content(logical + 1, logical))
        assert not pull.done()
    offer.seal(RUN)
    assert (await pull).num_blocks == 3


async def test_present_blocks_are_left_alone(pair: Pair) -> None:
    offer = pair.p.transport.offer(ATTEMPT, TICKET)
    offer.publish(pair.p.piece(0, 1, 2, 3))
    offer.seal(RUN)
    pulled = await pair.pull(3, 2)
    assert [pair.received(i) for i in range(2)] == [bytes(LAYOUT.block_bytes)] * 2
    assert pair.received(2) == content(3, 0)
    assert (pulled.num_blocks, pulled.num_bytes) == (1, LAYOUT.block_bytes)


async def test_all_present_moves_no_byte_and_still_verifies(pair: Pair) -> None:
    offer = pair.p.transport.offer(ATTEMPT, TICKET)
    offer.publish(pair.p.piece(0, 1, 2))
    offer.seal(RUN)
    pulled = await pair.pull(2, 2)
    assert (pulled.run, pulled.num_bytes, pulled.num_blocks) == (RUN, 0, 0)
    assert pair.d.plan.passed["verify"] == 1
    await until(lambda: pair.p.released == [ATTEMPT])


@pytest.mark.parametrize("when", ["before", "during"])
async def test_end_hands_over_nothing(pair: Pair, when: str) -> None:
    offer = pair.p.transport.offer(ATTEMPT, TICKET)
    offer.publish(pair.p.piece(0, 1))
    if when == "before":
        offer.end()
    pull = pair.pull(1)
    if when == "during":
        await until(lambda: pair.received(0) == content(1, 0))
        offer.end()
    assert (await pull).run is None
    assert pair.p.released == []


async def test_withdraw_during_the_pull(pair: Pair) -> None:
    offer = pair.p.transport.offer(ATTEMPT, TICKET)
    offer.publish(pair.p.piece(0, 1))
    pull = pair.pull(2)
    await until(lambda: pair.received(0) == content(1, 0))
    offer.withdraw()
    offer.withdraw()
    with pytest.raises(StaleBlocksError, match="withdrawn"):
        await pull
    with pytest.raises(PeerLostError, match="unknown"):
        await pair.pull(2)
    assert pair.p.released == []


async def test_another_ticket_incarnation_or_attempt_is_refused(pair: Pair) -> None:
    offer = pair.p.transport.offer(ATTEMPT, TICKET)
    offer.publish(pair.p.piece(0, 1))
    offer.seal(RUN)
    for request in (
        pair.request(1, ticket="wrong"),
        pair.request(1, ticket=""),
        pair.request(1, incarnation="p.2"),
        pair.request(1, attempt=Attempt("rid", 2)),
        pair.request(1, attempt=Attempt("other", 1)),
    ):
        with pytest.raises(PeerLostError):
            await pair.d.transport.pull(request)
    assert pair.received(0) == bytes(LAYOUT.block_bytes)
    await pair.pull(1)


async def test_another_layout_is_refused(pair: Pair) -> None:
    offer = pair.p.transport.offer(ATTEMPT, TICKET)
    offer.publish(pair.p.piece(0, 1))
    layout: KVLayout = replace(LAYOUT, dtype="float16", head_dim=2 * LAYOUT.head_dim)
    assert layout.block_bytes == LAYOUT.block_bytes
    memory = KVMemory.create(layout, NUM_BLOCKS)
    stranger: KVTransport
    match pair.kind:
        case "tcp" | "staged" | "ranked_tcp":
            stranger = tcp_transport(memory, "d.2")
        case "mapped" | "ranked":
            assert pair.d.mover is not None
            stranger = mapped_transport(
                ShownPool(memory), "d.2", pair.d.mover, folder=Path("unused")
            )
        case "nixl" | "ranked_nixl":
            assert pair.d.mover is not None
            stranger = nixl_transport(memory, "d.2", pair.d.mover)
        case "nccl":
            assert pair.d.mover is not None
            stranger = nccl_transport(memory, "d.2", pair.d.mover)
        case "auto":
            assert pair.d.mover is not None
            stranger = auto_transport(ShownPool(memory), "d.2", pair.d.mover, folder=Path("unused"))
        case "memory":
            stranger = MemoryTransport(memory, "d.2", pair.network)
    with pytest.raises(PeerLostError, match="fingerprint"):
        await stranger.pull(pair.request(1))
    await stranger.close()


@pytest.mark.parametrize("when", ["before", "between", "after"])
async def test_a_block_reused_before_the_verdict_is_never_accepted(pair: Pair, when: str) -> None:
    """Reuse before the read, after it, or between SEAL and VERIFY."""
    offer = pair.p.transport.offer(ATTEMPT, TICKET)
    gate = pair.d.plan.hold("verify")
    gate.open.set()
    if when == "after":
        gate.open.clear()
    offer.publish(pair.p.piece(0, 1, 2))
    if when == "before":
        pair.p.rewrite(2, seed=7)
    pull = pair.pull(2)
    if when == "between":
        await until(lambda: pair.received(1) == content(2, 0))
        pair.p.rewrite(2, seed=7)
    offer.seal(RUN)
    if when == "after":
        await gate.reached.wait()
        assert pair.received(1) == content(2, 0)
        pair.p.rewrite(2, seed=7)
        gate.open.set()
    with pytest.raises(StaleBlocksError):
        await pull
    assert pair.p.released == []


async def test_a_generation_alone_makes_a_block_stale(pair: Pair) -> None:
    """The bump precedes the write: equal bytes under another generation are not trusted."""
    offer = pair.p.transport.offer(ATTEMPT, TICKET)
    offer.publish(pair.p.piece(0, 1))
    pair.p.memory.generations[1] += 1
    offer.seal(RUN)
    with pytest.raises(StaleBlocksError):
        await pair.pull(1)


async def test_a_torn_read_is_never_accepted(pair: Pair) -> None:
    """The block is rewritten between the two halves of its read."""
    offer = pair.p.transport.offer(ATTEMPT, TICKET)
    gate = pair.p.plan.hold("half_read")
    offer.publish(pair.p.piece(0, 1))
    pull = pair.pull(1)
    await gate.reached.wait()
    pair.p.rewrite(1, seed=7)
    gate.open.set()
    offer.seal(RUN)
    with pytest.raises(StaleBlocksError):
        await pull


async def test_a_block_published_again_is_read_again(pair: Pair) -> None:
    """The prefill was run again inside the epoch: the new tags win (R12)."""
    offer = pair.p.transport.offer(ATTEMPT, TICKET)
    offer.publish(pair.p.piece(0, 1, 2, 3))
    pull = pair.pull(3)
    await until(lambda: pair.received(2) == content(3, 0))
    offer.publish(pair.p.piece(1, 2, 9, seed=5))
    offer.seal(RUN)
    pulled = await pull
    assert [pair.received(i) for i in range(3)] == [content(1, 0), content(2, 5), content(9, 5)]
    assert pulled.num_reread == 2
    assert pulled.num_blocks == 3


async def test_doubled_and_reordered_publications(pair: Pair) -> None:
    offer = pair.p.transport.offer(ATTEMPT, TICKET)
    pieces = [pair.p.piece(0, 1, 2), pair.p.piece(2, 3), pair.p.piece(3, 4, 5)]
    pull = pair.pull(5)
    for piece in (pieces[2], pieces[0], pieces[2], pieces[1], pieces[0]):
        offer.publish(piece)
    offer.seal(RUN)
    offer.seal(TokenRun("rid", 1, 0, (7,)))
    offer.end()
    offer.publish(pieces[1])
    pulled = await pull
    assert [pair.received(i) for i in range(5)] == [content(b, 0) for b in (1, 2, 3, 4, 5)]
    assert (pulled.run, pulled.num_reread) == (RUN, 0)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_pull_that_waits_for_prefill_holds_up_no_other(kind: Kind) -> None:
    """Long prompts may be computed for long, and others are ready before them."""
    limits = TransferLimits(progress_timeout_s=5.0, max_pulls=1)
    async with Pair(kind, limits) as pair:
        offers, pulls = [], []
        for number in range(4):
            attempt = Attempt(f"r{number}", 1)
            offers.append(pair.p.transport.offer(attempt, TICKET))
            offers[number].publish(pair.p.piece(0, 2 * number, seed=number))
            request = replace(pair.request(2, attempt=attempt), block_ids=_two(number))
            pulls.append(asyncio.create_task(pair.d.transport.pull(request)))
            await opened(pair, number + 1)

        def num_filled(which: int) -> int:
            blocks = [_two(number)[which] for number in range(4)]
            return sum(pair.d.read(b) == content(b, b // 2) for b in blocks)

        await until(lambda: num_filled(0) == 4)
        for number in reversed(range(4)):
            offers[number].publish(pair.p.piece(1, 2 * number + 1, seed=number))
            offers[number].seal(RUN)
            await pulls[number]
        assert num_filled(1) == 4


def _two(number: int) -> tuple[int, int]:
    """Blocks of its own."""
    return 2 * number, 2 * number + 1


async def test_nothing_is_left_behind(pair: Pair) -> None:
    for epoch in range(20):
        attempt = Attempt("rid", epoch)
        offer = pair.p.transport.offer(attempt, TICKET)
        offer.publish(pair.p.piece(0, 1, 2, seed=epoch))
        offer.seal(RUN)
        await pair.d.transport.pull(pair.request(2, attempt=attempt))
    await until(lambda: len(pair.p.released) == 20)
    assert pair.p.released == [Attempt("rid", epoch) for epoch in range(20)]
    assert pair.num_offers == 0
