"""The promise of KVTransport under loss: leases, restarts, cut connections, cancelling, closing.

Runs on `memory`, and on all others over real sockets, like test_transfer_contract.py.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from shared.errors import CorruptPieceError, KVTransferError, PeerLostError, StaleBlocksError
from shared.protocol import Attempt
from shared.transfer.limits import TransferLimits
from tests.support.fakes.faulty_transport import Fault
from tests.support.pairs.transfer_pair import (
    ATTEMPT,
    KINDS,
    NUM_BLOCKS,
    RUN,
    THAT_FETCH,
    THAT_MAP,
    TICKET,
    Kind,
    Pair,
    content,
    until,
)

pytestmark = [pytest.mark.anyio, pytest.mark.clock, pytest.mark.timeout(60)]

LEASE_S = 0.4
RENEWALS = 9
"""in three lengths of a lease"""


@pytest.fixture(params=KINDS)
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    async with Pair(request.param) as pair:
        yield pair


@pytest.fixture(params=KINDS)
async def brief(request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    """A pair whose leases are short, yet last until the two ends have met on a busy machine."""
    lease_s = 0.6 if request.param == "nixl" else LEASE_S
    limits = TransferLimits(lease_s=lease_s, progress_timeout_s=5.0)
    async with Pair(request.param, limits) as pair:
        yield pair


async def test_the_lease_runs_out_before_a_slow_read(brief: Pair) -> None:
    """Decode is frozen: no sign of life. The blocks are freed once and reused; the read that
    follows is refused or found stale, never used."""
    offer = brief.p.transport.offer(ATTEMPT, TICKET)
    offer.publish(brief.p.piece(0, 1))
    brief.d.plan.add("renew", Fault.DROP, times=1000)
    gate = brief.d.plan.hold("verify")
    pull = brief.pull(1)
    offer.seal(RUN)
    await gate.reached.wait()
    await brief.p.changed.wait()
    brief.p.rewrite(1, seed=7)
    gate.open.set()
    with pytest.raises((StaleBlocksError, CorruptPieceError)):
        await pull
    assert brief.p.released == [ATTEMPT]


async def test_a_writing_offer_never_expires(brief: Pair) -> None:
    offer = brief.p.transport.offer(ATTEMPT, TICKET)
    offer.publish(brief.p.piece(0, 1))
    other = brief.p.transport.offer(Attempt("other", 1), TICKET)
    other.publish(brief.p.piece(0, 2))
    other.seal(RUN)
    await brief.p.changed.wait()
    assert brief.p.released == [Attempt("other", 1)]
    offer.seal(RUN)
    await brief.pull(1)


async def test_renewing_keeps_a_lease_over_many_of_its_lengths(brief: Pair) -> None:
    offer = brief.p.transport.offer(ATTEMPT, TICKET)
    offer.publish(brief.p.piece(0, 1))
    gate = brief.d.plan.hold("verify")
    pull = brief.pull(1)
    offer.seal(RUN)
    await gate.reached.wait()
    await until(lambda: brief.d.plan.passed["renew"] >= RENEWALS)
    assert brief.p.released == []
    gate.open.set()
    await pull


async def test_a_pull_that_waits_for_its_turn_keeps_its_lease() -> None:
    limits = TransferLimits(lease_s=LEASE_S, progress_timeout_s=5.0, max_pulls=1)
    async with Pair("tcp", limits) as pair:
        first = pair.p.transport.offer(ATTEMPT, TICKET)
        first.publish(pair.p.piece(0, 1))
        second = pair.p.transport.offer(Attempt("second", 1), TICKET)
        second.publish(pair.p.piece(0, 2))
        second.seal(RUN)
        gate = pair.p.plan.hold("blocks")
        pull = pair.pull(1)
        await gate.reached.wait()
        request = replace(pair.request(1, attempt=Attempt("second", 1)), block_ids=(0,))
        waiting = asyncio.create_task(pair.d.transport.pull(request))
        await until(lambda: pair.d.plan.passed["renew"] >= 2 * RENEWALS)
        assert pair.p.released == []
        assert not waiting.done()
        gate.open.set()
        first.seal(RUN)
        await pull
        await waiting


async def test_a_reader_that_waits_for_blocks_keeps_the_lease(brief: Pair) -> None:
    """Its reservation may wait for longer than a lease; the pull comes after that."""
    offer = brief.p.transport.offer(ATTEMPT, TICKET)
    offer.publish(brief.p.piece(0, 1))
    offer.seal(RUN)
    keeping = asyncio.create_task(brief.d.transport.keep(replace(brief.request(1), block_ids=())))
    await until(lambda: brief.d.plan.passed["renew"] >= RENEWALS)
    assert brief.p.released == []
    assert brief.p.transport.traffic.num_signs >= RENEWALS - 1, (
        "prompts behind it see that it lives"
    )
    keeping.cancel()
    await brief.pull(1)
    assert brief.p.released == [ATTEMPT]
    assert brief.received(0) == content(1, 0)


async def test_a_reader_that_gave_up_waiting_loses_the_lease(brief: Pair) -> None:
    offer = brief.p.transport.offer(ATTEMPT, TICKET)
    offer.publish(brief.p.piece(0, 1))
    offer.seal(RUN)
    keeping = asyncio.create_task(brief.d.transport.keep(brief.request(1)))
    await until(lambda: brief.d.plan.passed["renew"] >= 3)
    keeping.cancel()
    await brief.p.changed.wait()
    assert brief.p.released == [ATTEMPT]


async def test_keeping_what_cannot_be_kept_raises_nothing(brief: Pair) -> None:
    await brief.d.transport.keep(brief.request(1, ticket="no"))
    await brief.d.transport.keep(brief.request(1, source="127.0.0.1:1"))


async def test_a_lost_release_is_made_good_by_the_lease(brief: Pair) -> None:
    brief.d.plan.add("release", Fault.DROP)
    offer = brief.p.transport.offer(ATTEMPT, TICKET)
    offer.publish(brief.p.piece(0, 1))
    offer.seal(RUN)
    await brief.pull(1)
    assert brief.p.released == []
    async with asyncio.timeout(3 * LEASE_S):
        await brief.p.changed.wait()
    assert brief.p.released == [ATTEMPT]


async def test_a_restarted_source_refuses_the_old_incarnation(pair: Pair) -> None:
    offer = pair.p.transport.offer(ATTEMPT, TICKET)
    offer.publish(pair.p.piece(0, 1))
    pull = pair.pull(2)
    await until(lambda: pair.received(0) == content(1, 0))
    await pair.p.transport.close()
    await pair.p.transport.close()
    with pytest.raises(PeerLostError):
        await pull
    with pytest.raises(PeerLostError):
        await pair.pull(2)
    restarted = pair.side("p.2")
    await restarted.transport.start()
    again = restarted.transport.offer(ATTEMPT, TICKET)
    again.publish(restarted.piece(0, 1))
    again.seal(RUN)
    source = restarted.transport.address
    with pytest.raises(PeerLostError):
        await pair.d.transport.pull(pair.request(1, source=source))
    await pair.d.transport.pull(pair.request(1, source=source, incarnation="p.2"))
    await restarted.close()


def with_kinds(*points: str) -> list[tuple[Kind, str]]:
    """Every kind with every point it has: a mapped reader asks for no verdict."""
    return [
        (kind, point)
        for kind in KINDS
        for point in points
        if point != "verified" or kind not in THAT_MAP
    ]


@pytest.mark.parametrize(
    ("pair", "point"),
    with_kinds("blocks", "half_read", "watermark", "seal", "verified"),
    indirect=["pair"],
)
async def test_a_connection_cut_anywhere_is_a_lost_peer(pair: Pair, point: str) -> None:
    pair.p.plan.add(point, Fault.CLOSE)
    offer = pair.p.transport.offer(ATTEMPT, TICKET)
    offer.publish(pair.p.piece(0, 1, 2))
    offer.seal(RUN)
    with pytest.raises(PeerLostError):
        await pair.pull(2)


@pytest.mark.parametrize("fault", [Fault.DROP, Fault.CORRUPT])
@pytest.mark.parametrize(
    ("pair", "point"), with_kinds("watermark", "seal", "verified"), indirect=["pair"]
)
async def test_a_lost_or_damaged_frame_is_damage(pair: Pair, point: str, fault: Fault) -> None:
    pair.p.plan.add(point, fault)
    offer = pair.p.transport.offer(ATTEMPT, TICKET)
    offer.publish(pair.p.piece(0, 1, 2))
    offer.seal(RUN)
    with pytest.raises(CorruptPieceError):
        await pair.pull(2)


async def test_cancelling_returns_only_when_no_read_touches_the_destination(pair: Pair) -> None:
    """R18: whoever gets the blocks next keeps what he writes into them."""
    gate = pair.p.plan.hold("half_read")
    offer = pair.p.transport.offer(ATTEMPT, TICKET)
    offer.publish(pair.p.piece(0, 1, 2))
    pull = pair.pull(2)
    await gate.reached.wait()
    pull.cancel()
    if pair.kind in THAT_FETCH:
        await asyncio.sleep(0.02)
        assert not pull.done(), "another thread still copies"
        gate.open.set()
    with pytest.raises(asyncio.CancelledError):
        await pull
    neighbour = [content(b, 99) for b in range(NUM_BLOCKS)]
    for block_id in range(NUM_BLOCKS):
        pair.d.write(block_id, neighbour[block_id])
    gate.open.set()
    await asyncio.sleep(0.05)
    assert [pair.d.read(b) for b in range(NUM_BLOCKS)] == neighbour
    offer.seal(RUN)
    await pair.pull(2)


async def test_closing_ends_pulls_of_the_own_side(pair: Pair) -> None:
    offer = pair.p.transport.offer(ATTEMPT, TICKET)
    offer.publish(pair.p.piece(0, 1))
    pull = pair.pull(2)
    await until(lambda: pair.received(0) == content(1, 0))
    await pair.d.transport.close()
    with pytest.raises(KVTransferError):
        await pull
    with pytest.raises(KVTransferError):
        await pair.pull(2)
