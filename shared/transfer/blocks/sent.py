"""Blocks that are sent over the connection of the pull.

    Read       several in flight, each of at most `max_read_bytes`
    Blocks     received into the destination; digested as they lie there
    Verify     the source compares the tags with its pool; it alone sees its generations

A piece is asked for by itself, so the frames of a pull follow from the pieces alone and not from
timing.
"""

import asyncio
from collections import deque
from functools import partial

from shared.errors import ProtocolError
from shared.kv.columns import Words
from shared.kv.layer_groups import layer_groups
from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory
from shared.tasks import settled
from shared.transfer.blocks.ledger import Versions
from shared.transfer.blocks.manifest import Part, Tags
from shared.transfer.blocks.payloads import Payloads
from shared.transfer.blocks.progress import Progress
from shared.transfer.blocks.verdict import Verdict
from shared.transfer.frame_stream import FrameStream
from shared.transfer.frames import (
    Blocks,
    Frame,
    Pool,
    Read,
    pack_tags,
    unpack_tags,
)
from shared.transfer.limits import TransferLimits
from shared.transfer.offers import LiveOffer
from shared.transfer.traffic import Traffic

DIGEST_BYTES = 2 * 2**20
"""received and then digested while the next bytes arrive"""
MAX_PAYLOAD_BYTES = 256 * 2**20
"""largest read served; our readers ask for `max_read_bytes`"""


class SentReads:
    """Keeps the promise of `shared.transfer.blocks.progress.Reads`."""

    name = "tcp"
    in_bursts = False

    def __init__(
        self,
        progress: Progress,
        stream: FrameStream,
        memory: KVMemory,
        payloads: Payloads,
        traffic: Traffic,
        limits: TransferLimits,
    ) -> None:
        self._progress = progress
        self._request = progress.request
        self._ledger = progress.ledger
        self._stream = stream
        self._memory = memory
        self._payloads = payloads
        self._groups = layer_groups(memory.layout)
        self._traffic = traffic
        self._limits = limits
        self._in_flight: deque[Part] = deque()
        self._is_receiving = False
        self._digesting: list[asyncio.Future[Words]] = []
        self._checks: asyncio.TaskGroup
        """of the reads of one turn"""
        self._verdict = Verdict(stream, progress.ledger.num_present_blocks)
        self._moved = partial(traffic.move, progress.request.attempt)

    async def bring(self) -> None:
        """Keep a few reads in flight for what is wanted. `changed` is cleared before the ledger is
        asked, so no want is missed."""
        async with asyncio.TaskGroup() as self._checks:
            while True:
                self._progress.changed.clear()
                await self._ask()
                if not self._in_flight and not self._is_receiving:
                    return
                await self._progress.changed.wait()

    async def take(self, frame: Frame, payload_bytes: int) -> None:
        if isinstance(frame, Blocks):
            await self._receive(frame, payload_bytes)
        else:
            self._verdict.take(frame)

    async def is_fresh(self, tags: Tags) -> bool:
        return await self._verdict.ask(tags)

    async def settle(self) -> None:
        await settled(self._digesting)
        self._memory.unmap_pages(self._request.block_ids)

    async def _ask(self) -> None:
        while len(self._in_flight) < self._limits.num_pipelined_reads:
            part = self._ledger.next_read(self._limits.max_read_bytes)
            if part is None:
                return
            self._in_flight.append(part)
            self._traffic.activate(self._request.attempt)
            await self._stream.send(Read(part.first_block, part.num_blocks, *part.groups))

    async def _receive(self, frame: Blocks, payload_bytes: int) -> None:
        """The answer to the oldest read."""
        tags = unpack_tags(frame.block_ids, frame.generations)
        if not self._in_flight or self._in_flight[0][:2] != (frame.first_block, len(tags)):
            raise ProtocolError("the source answers what was not asked")
        part = self._in_flight.popleft()
        block_bytes = self._groups.num_bytes(part.groups)
        if payload_bytes != part.num_blocks * block_bytes:
            raise ProtocolError("a payload is not as long as its blocks")
        self._is_receiving = True
        self._progress.changed.set()
        num_digested = max(1, DIGEST_BYTES // block_bytes)
        for start in range(0, part.num_blocks, num_digested):
            some = tags[start : start + num_digested]
            await self._fill(Part(part.first_block + start, len(some), part.groups), some)
        if not self._in_flight:
            self._traffic.rest(self._request.attempt)
        self._progress.num_bytes += payload_bytes
        self._is_receiving = False
        self._progress.changed.set()

    async def _fill(self, part: Part, tags: Tags) -> None:
        """Receive a part into its destination; it is digested while the next arrives."""
        rows, _ = part.cells
        versions = self._ledger.begin(part)
        digesting = await self._payloads.receive(
            self._stream,
            self._request.attempt,
            self._request.block_ids[rows],
            part.groups,
            self._moved,
        )
        self._digesting.append(digesting)
        self._checks.create_task(self._check(part, versions, tags, digesting))

    async def _check(
        self, part: Part, versions: Versions, tags: Tags, digesting: "asyncio.Future[Words]"
    ) -> None:
        self._ledger.finish(part, versions, tags, await asyncio.shield(digesting))
        self._digesting.remove(digesting)
        self._progress.note_copied()


class SentBlocks:
    """Keeps the promise of `shared.transfer.blocks.progress.Served`."""

    def __init__(self, layout: KVLayout, payloads: Payloads, traffic: Traffic) -> None:
        self._layout = layout
        self._payloads = payloads
        self._traffic = traffic

    async def send(self, stream: FrameStream, offer: LiveOffer, part: Part) -> None:
        """Reuse while they are sent is not noticed here: VERIFY comes later."""
        tags = offer.tags(part)
        if tags is None or part.num_blocks * self._layout.block_bytes > MAX_PAYLOAD_BYTES:
            raise ProtocolError("a reader asks for blocks that are not published")
        frame = Blocks(part.first_block, *pack_tags(tags))
        moved = partial(self._traffic.move, offer.attempt)
        block_ids = tags.block_ids.tolist()
        await self._payloads.send(stream, frame, block_ids, part.groups, moved)

    async def show_pool(self, stream: FrameStream) -> None:
        await stream.send(Pool(0, b"", problem="blocks are only sent"))
        await stream.until_closed()
