"""Prefill's offers: order of publication, readers, leases, and on_release exactly once."""

import asyncio
from collections.abc import AsyncIterator, Callable

import numpy as np
import pytest

from shared.kv.columns import Words
from shared.kv.digest import BlockDigests
from shared.kv.layer_groups import layer_groups
from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory, Piece
from shared.loops import Loops
from shared.protocol import Attempt, TokenRun
from shared.transfer.blocks.manifest import Part, Tags
from shared.transfer.digest_threads import DigestThreads
from shared.transfer.frames import Open
from shared.transfer.offers import LiveOffer, OfferState, OfferTable
from tests.support.fakes.manual_clock import ManualClock

pytestmark = pytest.mark.anyio

LAYOUT = KVLayout("m", "float32", 3, 2, 1, 4, 4)
ALL = layer_groups(LAYOUT).all
ATTEMPT = Attempt("r", 1)
RUN = TokenRun("r", 1, 0, (9,))


class Bench:
    """A table whose publisher runs, with a manual clock."""

    def __init__(self) -> None:
        self.memory = KVMemory.create(LAYOUT, 8)
        self.clock = ManualClock()
        self.released: list[Attempt] = []
        self.threads = DigestThreads(self.memory)
        self.table = OfferTable(self.memory, 10.0, self.clock, self.threads)
        self.table.on_release = self.released.append
        self.loops = Loops(self.clock)
        self.table.start(self.loops)

    async def until(self, offer: LiveOffer, state: OfferState) -> None:
        changed = asyncio.Event()
        offer.watchers.add(changed)
        async with asyncio.timeout(5):
            while offer.state is not state:
                changed.clear()
                await changed.wait()

    async def sealed(self, ticket: str = "s") -> LiveOffer:
        offer = self.table.open(ATTEMPT, ticket)
        offer.publish(Piece(0, (1, 2), (0, 0)))
        offer.seal(RUN)
        await self.until(offer, OfferState.SEALED)
        return offer


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    yield bench
    await bench.loops.close()
    bench.threads.close()


async def test_publications_keep_their_order_and_seal_stays_behind_them(bench: Bench) -> None:
    offer = bench.table.open(ATTEMPT, "s")
    for first in range(6):
        offer.publish(Piece(first, (first,), (0,)))
    offer.seal(RUN)
    assert offer.state is OfferState.WRITING
    await bench.until(offer, OfferState.SEALED)
    assert [p.part for p in offer.publications] == [Part(first, 1, ALL) for first in range(6)]
    assert offer.manifest.tags.equal(Tags.of(range(6), [0] * 6)).all()
    assert np.array_equal(
        offer.manifest.digests, BlockDigests.of_pool(bench.memory).of(range(6), ALL)
    )
    assert offer.run == RUN


async def published(bench: Bench, attempt: Attempt, piece: Piece) -> tuple[LiveOffer, list[int]]:
    offer = bench.table.open(attempt, "s")
    changed = asyncio.Event()
    offer.watchers.add(changed)
    offer.publish(piece)
    async with asyncio.timeout(5):
        await changed.wait()
    digests: list[int] = offer.publications[0].digests[0].tolist()
    return offer, digests


def digests_now(bench: Bench, block_id: int) -> list[int]:
    digests: list[int] = BlockDigests.of_pool(bench.memory).of([block_id], ALL)[0].tolist()
    return digests


async def test_a_sealed_block_is_digested_once_per_generation(bench: Bench) -> None:
    first = await bench.sealed()
    bench.memory.block(1)[:] = b"x" * LAYOUT.block_bytes  # reading it again gives another digest
    _, again = await published(bench, Attempt("r", 2), Piece(0, (1,), (0,)))
    assert again == first.manifest.digests[0].tolist()
    _, later = await published(bench, Attempt("r", 3), Piece(0, (1,), (1,)))
    assert later == digests_now(bench, 1)
    assert later != again


@pytest.mark.parametrize("how", [LiveOffer.end, LiveOffer.withdraw])
async def test_the_digest_of_an_attempt_that_was_not_sealed_is_not_kept(
    bench: Bench, how: Callable[[LiveOffer], None]
) -> None:
    """Its engine may have given the bytes back before they were read."""
    offer, _ = await published(bench, Attempt("r", 2), Piece(0, (1,), (0,)))
    how(offer)
    bench.memory.block(1)[:] = b"x" * LAYOUT.block_bytes
    _, digests = await published(bench, Attempt("r", 3), Piece(0, (1,), (0,)))
    assert digests == digests_now(bench, 1)


async def test_seal_with_a_gap_or_a_foreign_block_is_refused_at_the_call(bench: Bench) -> None:
    offer = bench.table.open(ATTEMPT, "s")
    with pytest.raises(ValueError, match="gap"):
        offer.seal(RUN)
    offer.publish(Piece(1, (1,), (0,)))
    with pytest.raises(ValueError, match="gap"):
        offer.seal(RUN)
    for piece in (Piece(0, (8,), (0,)), Piece(-1, (1,), (0,)), Piece(0, (1, 2), (0,))):
        with pytest.raises(ValueError, match="does not have"):
            offer.publish(piece)
    with pytest.raises(ValueError, match="offered already"):
        bench.table.open(ATTEMPT, "s")


async def test_who_may_read(bench: Bench) -> None:
    offer = bench.table.open(ATTEMPT, "sécret")
    good = Open(Attempt("r", 1), "sécret", "p.1", LAYOUT.fingerprint())
    assert bench.table.admit(good, "p.1") is offer
    assert bench.table.admit(good, "p.2") == "incarnation"
    assert bench.table.admit(Open(Attempt("r", 1), "sécret", "p.1", "x"), "p.1") == "fingerprint"
    for request in (
        Open(Attempt("r", 2), "sécret", "p.1", LAYOUT.fingerprint()),
        Open(Attempt("r", 1), "secret", "p.1", LAYOUT.fingerprint()),
        Open(Attempt("r", 1), "", "p.1", LAYOUT.fingerprint()),
    ):
        assert bench.table.admit(request, "p.1") == "unknown"


async def test_the_lease_starts_at_seal_and_frees_once(bench: Bench) -> None:
    offer = bench.table.open(ATTEMPT, "s")
    offer.publish(Piece(0, (1,), (0,)))
    bench.clock.advance(1e6)
    bench.table.expire()
    assert offer.state is OfferState.WRITING
    offer.seal(RUN)
    await bench.until(offer, OfferState.SEALED)
    bench.clock.advance(9.9)
    bench.table.expire()
    assert bench.released == []
    bench.clock.advance(0.1)
    for _ in range(2):
        bench.table.expire()
    assert bench.released == [ATTEMPT]
    assert offer.refusal == "expired"
    bench.table.release(offer)
    offer.withdraw()
    assert bench.released == [ATTEMPT]
    assert len(bench.table) == 0


async def test_a_renewed_lease_lasts(bench: Bench) -> None:
    offer = await bench.sealed()
    for _ in range(5):
        bench.clock.advance(9)
        bench.table.renew(offer)
        bench.table.expire()
    assert offer.state is OfferState.SEALED
    bench.clock.advance(10)
    bench.table.expire()
    assert bench.released == [ATTEMPT]


async def test_release_frees_once_and_only_what_is_sealed(bench: Bench) -> None:
    offer = await bench.sealed()
    bench.table.release(offer)
    bench.table.release(offer)
    bench.clock.advance(100)
    bench.table.expire()
    assert bench.released == [ATTEMPT]
    writing = bench.table.open(Attempt("r", 2), "s")
    bench.table.release(writing)
    assert bench.released == [ATTEMPT]


async def test_who_ends_or_withdraws_is_not_told(bench: Bench) -> None:
    ended = bench.table.open(ATTEMPT, "s")
    ended.publish(Piece(0, (1,), (0,)))
    ended.end()
    ended.seal(RUN)
    await bench.until(ended, OfferState.ENDED)
    withdrawn = bench.table.open(Attempt("r", 2), "s")
    withdrawn.withdraw()
    withdrawn.withdraw()
    withdrawn.publish(Piece(0, (1,), (0,)))
    assert withdrawn.refusal == "withdrawn"
    bench.clock.advance(100)
    bench.table.expire()
    assert bench.released == []
    assert len(bench.table) == 0


async def test_publishing_after_seal_changes_nothing(bench: Bench) -> None:
    offer = await bench.sealed()
    offer.publish(Piece(0, (5,), (3,)))
    offer.seal(TokenRun("r", 1, 0, (1,)))
    offer.end()
    other = bench.table.open(Attempt("r", 2), "s")
    other.publish(Piece(0, (1,), (0,)))
    other.seal(RUN)
    await bench.until(other, OfferState.SEALED)
    assert offer.manifest.tags.equal(Tags.of([1, 2], [0, 0])).all()
    assert (offer.state, offer.run) == (OfferState.SEALED, RUN)


async def test_verify_compares_manifest_pool_and_state(bench: Bench) -> None:
    offer = await bench.sealed()
    good = Tags.of([1, 2], [0, 0])
    assert bench.table.is_fresh(offer, 0, good)
    assert bench.table.is_fresh(offer, 1, good[1:])
    assert bench.table.is_fresh(offer, 2, Tags.of([], []))
    assert not bench.table.is_fresh(offer, 1, good)
    assert not bench.table.is_fresh(offer, 0, Tags.of([1, 2], [1, 0]))
    assert not bench.table.is_fresh(offer, 0, Tags.of([2, 1], [0, 0]))
    assert not bench.table.is_fresh(offer, 2**40, good)
    assert not bench.table.is_fresh(offer, -1, good)
    assert not bench.table.is_fresh(offer, -2, good)
    bench.memory.generations[2] += 1
    assert not bench.table.is_fresh(offer, 0, good)
    assert bench.table.is_fresh(offer, 0, good[:1])
    offer.withdraw()
    assert not bench.table.is_fresh(offer, 0, good[:1])
    assert not bench.table.is_fresh(offer, 2, Tags.of([], []))


async def test_an_offer_that_cannot_be_published_ends_and_the_next_is_served(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*question: object) -> Words:
        raise OSError("no memory for a thread")

    with monkeypatch.context() as patch:
        patch.setattr(bench.threads, "digests", broken)
        offer = bench.table.open(Attempt("other", 1), "s")
        offer.publish(Piece(0, (5,), (0,)))
        await bench.until(offer, OfferState.WITHDRAWN)
    await bench.sealed()
    assert bench.loops.failures()["kv_offers"] == 1
