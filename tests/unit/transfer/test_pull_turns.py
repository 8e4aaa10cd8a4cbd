"""When a pull reads: in its turn, and in bursts where waiting for more is worth it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import numpy as np
import pytest

from shared.kv.layer_groups import LayerGroups, layer_groups
from shared.protocol import Attempt
from shared.transfer.blocks.manifest import Part, Publication, Tags
from shared.transfer.blocks.progress import Progress
from shared.transfer.frame_stream import FrameStream
from shared.transfer.frames import Frame, Opened
from shared.transfer.limits import TransferLimits
from shared.transfer.pull import Pull
from shared.transfer.slots import Slots
from shared.transfer.traffic import Traffic
from shared.transfer.transport import PullRequest
from shared.transfer_address import NOWHERE
from tests.support.fakes.manual_clock import ManualClock
from tests.support.pairs.transfer_pair import LAYOUT

pytestmark = pytest.mark.anyio

GROUPS: LayerGroups = layer_groups(LAYOUT)
SOURCE = "p.1"


class _Source:
    """Opens the attempt and says nothing more."""

    def __init__(self) -> None:
        self._frames: list[Frame] = [Opened(1000)]

    async def send(self, frame: Frame) -> None:
        pass

    async def receive(self) -> tuple[Frame, int]:
        if not self._frames:
            await asyncio.Event().wait()
        return self._frames.pop(), 0


class _Reads:
    """Reads what is wanted once it may."""

    name = "test"

    def __init__(self, progress: Progress, *, in_bursts: bool) -> None:
        self.in_bursts = in_bursts
        self.bursts: list[int] = []
        """blocks of each"""
        self.reading = False
        self.may_end = asyncio.Event()
        self.may_end.set()
        self._ledger = progress.ledger

    async def bring(self) -> None:
        self.reading = True
        await self.may_end.wait()
        num_blocks = 0
        while part := self._ledger.next_read(2**30):
            num_blocks += part.num_blocks
        self.bursts.append(num_blocks)
        self.reading = False

    async def take(self, frame: Frame, payload_bytes: int) -> None:
        raise AssertionError(frame)

    async def is_fresh(self, tags: Tags) -> bool:
        raise AssertionError(tags)

    async def settle(self) -> None:
        pass


class _Pulling:
    """A pull of some blocks that a source has opened."""

    def __init__(
        self,
        number: int,
        num_blocks: int,
        slots: Slots,
        traffic: Traffic,
        *,
        in_bursts: bool = False,
    ) -> None:
        self.attempt = Attempt(f"r{number}", 0)
        self.clock = ManualClock()
        request = PullRequest(self.attempt, NOWHERE, SOURCE, "ticket", tuple(range(num_blocks)))
        self._progress = Progress(request, GROUPS, self.clock)
        self.reads = _Reads(self._progress, in_bursts=in_bursts)
        traffic.expect(self.attempt, num_blocks, SOURCE)
        stream = cast("FrameStream", _Source())
        limits = TransferLimits()
        turns = slots.of(SOURCE)
        pull = Pull(self._progress, stream, "layout", turns, traffic, limits, self.clock)
        self.task = asyncio.create_task(pull.run(self.reads))

    async def publish(self, first: int, num_blocks: int, generation: int = 1) -> None:
        tags = Tags.of(range(first, first + num_blocks), [generation] * num_blocks)
        digests = np.zeros((num_blocks, len(GROUPS)), np.uint64)
        part = Part(first, num_blocks, GROUPS.all)
        self._progress.ledger.publish(Publication(part, tags, digests))
        self._progress.note_published()
        await _settled()


async def _settled() -> None:
    """Whoever can go on has."""
    for _ in range(20):
        await asyncio.sleep(0)


@asynccontextmanager
async def _pulling(*pulls: _Pulling) -> AsyncIterator[None]:
    await _settled()
    yield
    for pull in pulls:
        pull.task.cancel()
    await asyncio.gather(*(pull.task for pull in pulls), return_exceptions=True)


async def test_two_pulls_read_at_once_and_the_others_in_the_order_in_which_they_could() -> None:
    slots, traffic = Slots(2), Traffic(ManualClock())
    pulls = [_Pulling(number, 2, slots, traffic) for number in range(5)]

    def reading() -> list[int]:
        return [number for number, pull in enumerate(pulls) if pull.reads.reading]

    async with _pulling(*pulls):
        assert not any(traffic.waits(pull.attempt) for pull in pulls), "for prefill, not a turn"
        for number in (3, 0, 4, 1, 2):
            pulls[number].reads.may_end.clear()
            await pulls[number].publish(0, 1)
        assert reading() == [0, 3]
        assert [traffic.waits(pull.attempt) for pull in pulls] == [False, True, True, False, True]
        pulls[3].reads.may_end.set()
        await _settled()
        assert reading() == [0, 4], "its turn is over, although more of it is to come"
        assert not traffic.waits(pulls[3].attempt)
        for number, expected in ((4, [0, 1]), (0, [1, 2]), (2, [1])):
            pulls[number].reads.may_end.set()
            await _settled()
            assert reading() == expected


async def test_in_bursts_what_comes_early_waits_for_the_last_blocks() -> None:
    pull = _Pulling(0, 12, Slots(1), Traffic(ManualClock()), in_bursts=True)
    async with _pulling(pull):
        for first, num_blocks in ((0, 4), (4, 4), (8, 3)):
            await pull.publish(first, num_blocks)
            assert pull.reads.bursts == []
            pull.clock.advance(0.1)
        await pull.publish(11, 1)
        assert pull.reads.bursts == [12]
        await pull.publish(5, 1, generation=2)
        assert pull.reads.bursts == [12, 1]


async def test_without_bursts_everything_is_read_as_it_comes() -> None:
    pull = _Pulling(0, 12, Slots(1), Traffic(ManualClock()))
    async with _pulling(pull):
        await pull.publish(0, 1)
        await pull.publish(1, 2)
        assert pull.reads.bursts == [1, 2]
