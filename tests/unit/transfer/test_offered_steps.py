"""Offers of steps: layer groups are published one by one, as the step writes them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple

import numpy as np
import pytest

from shared.errors import PeerLostError
from shared.kv.columns import Words
from shared.kv.digest import BlockDigests
from shared.kv.layer_groups import GroupRange, layer_groups
from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory, Piece
from shared.loops import Loops
from shared.protocol import Attempt, TokenRun
from shared.transfer.blocks.manifest import Part
from shared.transfer.offers import LiveOffer, OfferState, OfferTable
from tests.support.fakes.manual_clock import ManualClock

pytestmark = pytest.mark.anyio

LAYOUT = KVLayout("m", "float32", 3, 2, 1, 4, 4)
NUM_GROUPS = 2
ALL = layer_groups(LAYOUT).all
ATTEMPT = Attempt("r", 1)
RUN = TokenRun("r", 1, 0, (9,))


class Question(NamedTuple):
    """What a digester was asked for."""

    blocks: list[int]
    groups: GroupRange
    step: int | None


class HeldDigester:
    """Digests blocks of a step's groups when told that the step has written them."""

    def __init__(self, memory: KVMemory) -> None:
        self._digests = BlockDigests.of_pool(memory)
        self._written: dict[tuple[int, int], asyncio.Event] = {}
        self.asked: list[Question] = []

    async def digests(self, blocks: Sequence[int], groups: GroupRange, step: int | None) -> Words:
        self.asked.append(Question(list(blocks), groups, step))
        if step is not None:
            await self._event(step, groups.first).wait()
            later = range(groups.first + 1, groups.end)
            number = 1 + sum(self._event(step, group).is_set() for group in later)
            groups = GroupRange(groups.first, number)
        return self._digests.of(blocks, groups)

    def write(self, step: int, group: int) -> None:
        self._event(step, group).set()

    def _event(self, step: int, group: int) -> asyncio.Event:
        return self._written.setdefault((step, group), asyncio.Event())


class Steps:
    """A table whose publisher runs, and the steps that write what is offered."""

    def __init__(self) -> None:
        self.memory = KVMemory.create(LAYOUT, 8)
        self.digester = HeldDigester(self.memory)
        self.table = OfferTable(self.memory, 10.0, ManualClock(), self.digester)
        self.loops = Loops(ManualClock())
        self.table.start(self.loops)

    def write(self, step: int, group: int) -> None:
        """The step writes the group: other bytes than lay there, into every block."""
        span = layer_groups(LAYOUT).span(GroupRange(group, 1))
        self.memory.rows()[:, span] = 16 * step + group
        self.digester.write(step, group)

    def digests(self, block_ids: Sequence[int]) -> Words:
        """Of what lies there now."""
        return BlockDigests.of_pool(self.memory).of(block_ids, ALL)

    async def until(self, offer: LiveOffer, holds: Callable[[], bool]) -> None:
        changed = asyncio.Event()
        offer.watchers.add(changed)
        async with asyncio.timeout(5):
            while not holds():
                changed.clear()
                await changed.wait()

    async def sealed(self, offer: LiveOffer) -> None:
        await self.until(offer, lambda: offer.state is OfferState.SEALED)

    async def told(self, offer: LiveOffer, number: int) -> None:
        """Until the offer has this number of publications; some turns later it has no more."""
        await self.until(offer, lambda: len(offer.publications) >= number)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(offer.publications) == number


@pytest.fixture
async def steps() -> AsyncIterator[Steps]:
    steps = Steps()
    yield steps
    await steps.loops.close()


async def test_a_steps_groups_are_published_one_by_one_for_all_its_attempts(steps: Steps) -> None:
    table = steps.table
    offers = [table.open(Attempt("r", number), "s") for number in range(2)]
    offers[0].publish(Piece(0, (1, 2), (0, 0)), step=1)
    offers[1].publish(Piece(0, (5,), (0,)), step=1)
    for offer in offers:
        offer.seal(RUN)
    for group in range(NUM_GROUPS):
        for offer in offers:
            await steps.told(offer, group)
            assert offer.state is OfferState.WRITING
        steps.write(1, group)
    for offer, block_ids in zip(offers, ([1, 2], [5]), strict=True):
        await steps.sealed(offer)
        wanted = [Part(0, len(block_ids), GroupRange(group, 1)) for group in range(NUM_GROUPS)]
        assert [publication.part for publication in offer.publications] == wanted
        digests = steps.digests(block_ids)
        assert np.array_equal(offer.manifest.digests, digests)
    left = [GroupRange(group, NUM_GROUPS - group) for group in range(NUM_GROUPS)]
    asked = [Question([1, 2, 5], groups, 1) for groups in left]
    assert steps.digester.asked == asked, "one question, for all attempts, of what is left"


async def test_what_a_step_has_written_is_published_at_once(steps: Steps) -> None:
    offer = steps.table.open(ATTEMPT, "s")
    for group in range(NUM_GROUPS):
        steps.write(1, group)
    offer.publish(Piece(0, (1, 2), (0, 0)), step=1)
    offer.seal(RUN)
    await steps.sealed(offer)
    assert [publication.part for publication in offer.publications] == [Part(0, 2, ALL)]
    assert np.array_equal(offer.manifest.digests, steps.digests([1, 2]))


async def test_a_later_step_waits_for_its_turn(steps: Steps) -> None:
    offer = steps.table.open(ATTEMPT, "s")
    offer.publish(Piece(0, (1,), (0,)), step=1)
    offer.publish(Piece(1, (2,), (0,)), step=2)
    steps.write(2, 0)
    steps.write(2, 1)
    await steps.told(offer, 0)
    steps.write(1, 0)
    await steps.told(offer, 1)
    steps.write(1, 1)
    await steps.told(offer, 3)
    assert [publication.part[0] for publication in offer.publications] == [0, 0, 1]


async def test_a_seal_waits_for_no_step_that_was_announced_meanwhile(steps: Steps) -> None:
    """The next step is announced before this one is booked, and takes as long as a chunk."""
    early, late, following = (steps.table.open(Attempt("r", number), "s") for number in range(3))
    early.publish(Piece(0, (1,), (0,)), step=1)
    late.publish(Piece(0, (2,), (0,)), step=1)
    following.publish(Piece(0, (3,), (0,)), step=2)
    early.seal(RUN)
    steps.write(1, 0)
    steps.write(1, 1)
    await steps.sealed(early)
    late.seal(RUN)
    await steps.sealed(late)
    assert not following.publications


async def test_known_digests_of_a_sealed_prefix_ask_for_nothing(steps: Steps) -> None:
    first = steps.table.open(ATTEMPT, "s")
    first.publish(Piece(0, (1, 2), (0, 0)))
    first.seal(RUN)
    await steps.sealed(first)
    assert steps.digester.asked == [Question([1, 2], ALL, None)]
    again = steps.table.open(Attempt("r", 2), "s")
    again.publish(Piece(0, (1, 2), (0, 0)))
    again.publish(Piece(2, (2, 1), (0, 0)), step=1)
    await steps.told(again, 2)
    assert len(steps.digester.asked) == 1
    assert np.array_equal(again.manifest.digests, first.manifest.digests[[0, 1, 1, 0]])


async def test_only_what_is_not_known_is_asked_for(steps: Steps) -> None:
    first = steps.table.open(ATTEMPT, "s")
    first.publish(Piece(0, (1, 2), (0, 0)))
    first.seal(RUN)
    other = steps.table.open(Attempt("r", 2), "s")
    other.publish(Piece(0, (1, 3, 2, 4), (0, 0, 1, 0)))
    await steps.told(other, 1)
    assert steps.digester.asked[1:] == [Question([3, 2, 4], ALL, None)]
    digests = steps.digests([1, 3, 2, 4])
    assert np.array_equal(other.manifest.digests, digests)


async def test_an_attempt_that_is_withdrawn_amid_a_step_is_told_nothing_more(steps: Steps) -> None:
    table = steps.table
    gone, stays = (table.open(Attempt("r", number), "s") for number in range(2))
    gone.publish(Piece(0, (1,), (0,)), step=1)
    stays.publish(Piece(0, (2,), (0,)), step=1)
    steps.write(1, 0)
    await steps.told(stays, 1)
    gone.withdraw()
    steps.write(1, 1)
    await steps.told(stays, 2)
    assert len(gone.publications) == 1
    assert np.array_equal(stays.manifest.digests, steps.digests([2]))


@pytest.mark.parametrize(
    ("error", "refusal"), [(PeerLostError("gone"), None), (RuntimeError("broken"), "withdrawn")]
)
async def test_what_cannot_be_digested_is_withdrawn_unless_its_engine_is_gone(
    steps: Steps, error: Exception, refusal: str | None
) -> None:
    """Then this process ends: its readers see that, after its gateways have heard why."""
    asked = asyncio.Event()

    async def digests(blocks: Sequence[int], groups: GroupRange, step: int | None) -> Words:
        asked.set()
        raise error

    steps.digester.digests = digests  # type: ignore[method-assign]
    offer = steps.table.open(ATTEMPT, "s")
    offer.publish(Piece(0, (1,), (0,)))
    await asked.wait()
    await asyncio.sleep(0.01)
    assert offer.refusal == refusal
