"""Decode's end of one pull connection.

    Open -> Opened     the source knows the attempt
    Watermark          its blocks are asked for, several reads in flight, while prefill computes
    Blocks             received straight into the destination; digested in a thread as they lie
    Seal               tags that differ from the manifest are read again (R12)
    Verify             once, when nothing is missing (R13); then Release

A piece is asked for by itself, in reads of at most `max_read_bytes`, so the frames of a pull
follow from the pieces alone and not from timing.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Sequence
from functools import partial

from shared.clock import Clock
from shared.errors import KVTransferError, PeerLostError, ProtocolError
from shared.protocol import TokenRun
from shared.tasks import settled
from shared.transfer.blocks import block_views
from shared.transfer.digest_threads import DigestThreads
from shared.transfer.failure import check_verdict, pull_failure, raise_refusal
from shared.transfer.frame_stream import FrameStream
from shared.transfer.frames import (
    Blocks,
    End,
    Frame,
    Open,
    Opened,
    Read,
    Refused,
    Release,
    Renew,
    Renewed,
    Seal,
    Verified,
    Verify,
    Watermark,
    pack_ids,
    pack_words,
    unpack_ids,
    unpack_words,
)
from shared.transfer.ledger import BlockRange, PullLedger, Tag
from shared.transfer.traffic import Traffic
from shared.transfer.transport import Pulled, PullRequest, TransferLimits

logger = logging.getLogger(__name__)

MIN_RENEW_S = 0.01
DIGEST_BYTES = 2 * 2**20
"""received and then digested while the next bytes arrive"""


class TcpPull:
    """One pull over an open connection. `slots` bounds how many pulls read at once; a pull that
    waits for its turn keeps its lease."""

    def __init__(
        self,
        request: PullRequest,
        stream: FrameStream,
        digests: DigestThreads,
        slots: asyncio.Semaphore,
        traffic: Traffic,
        limits: TransferLimits,
        clock: Clock,
    ) -> None:
        self._request = request
        self._stream = stream
        self._memory = digests.memory
        self._digests = digests
        self._slots = slots
        self._traffic = traffic
        self._limits = limits
        self._clock = clock
        self._ledger = PullLedger(len(request.block_ids), request.num_present_blocks)
        self._in_flight: deque[BlockRange] = deque()
        self._digesting: list[asyncio.Future[tuple[int, ...]]] = []
        self._wake = asyncio.Event()
        self._verifying = False
        self._num_bytes = 0
        self._start_ns = self._sealed_ns = clock.wall_ns()
        self._token_1: TokenRun | None = None
        self._moved = partial(traffic.move, request.attempt)

    async def run(self) -> Pulled:
        """The verified hand-over, released. KVTransferError of the kind that the contract names;
        whichever way it ends, nothing touches the destination any more."""
        try:
            return await self._pull()
        except* (KVTransferError, ProtocolError) as group:
            failure = pull_failure(group)
        raise failure

    async def keep(self) -> None:
        """Renew the lease and read nothing, until cancelled or the source has no more to say."""
        try:
            renew_every_s = await self._open(keeps=True)
            async with asyncio.TaskGroup() as group:
                renewing = group.create_task(self._renew(renew_every_s))
                while not isinstance((await self._stream.receive())[0], Refused | End):
                    pass
                renewing.cancel()
        except* (KVTransferError, ProtocolError) as errors:
            logger.info("the lease of %s is not kept: %s", self._request.attempt, errors)

    async def _pull(self) -> Pulled:
        renew_every_s = await self._open()
        try:
            async with asyncio.TaskGroup() as group:
                background = [
                    group.create_task(self._ask()),
                    group.create_task(self._renew(renew_every_s)),
                ]
                await self._receive(group)
                for task in background:
                    task.cancel()
        finally:
            self._traffic.rest(self._request.attempt)
            await settled(self._digesting)
            self._memory.unmap_pages(self._request.block_ids)
        end_ns = self._clock.wall_ns()
        with contextlib.suppress(PeerLostError):
            await self._stream.send(Release())
        ledger = self._ledger
        return Pulled(
            run=self._token_1,
            num_bytes=self._num_bytes,
            num_blocks=ledger.num_read_blocks,
            start_ns=self._start_ns,
            sealed_ns=self._sealed_ns,
            end_ns=end_ns,
            num_reread=ledger.num_reread,
        )

    async def _open(self, *, keeps: bool = False) -> float:
        """Show the ticket; returns how often to renew, in seconds."""
        request = self._request
        await self._stream.send(
            Open(
                request.attempt,
                request.ticket,
                request.source_incarnation,
                self._memory.layout.fingerprint(),
                keeps,
            )
        )
        frame, _ = await self._stream.receive()
        if isinstance(frame, Refused):
            raise_refusal(frame.reason)
        if not isinstance(frame, Opened):
            raise ProtocolError("the source's first frame is Opened or Refused")
        asked_s = max(MIN_RENEW_S, frame.renew_every_ms / 1000)
        return min(asked_s, self._limits.renew_every_s)

    async def _receive(self, group: asyncio.TaskGroup) -> None:
        """Until the source's last word: End, or the answer to Verify."""
        while True:
            frame, payload_bytes = await self._stream.receive()
            if isinstance(frame, Blocks):
                await self._take(frame, payload_bytes, group)
            elif payload_bytes:
                raise ProtocolError(f"{type(frame).__name__} has no payload")
            elif isinstance(frame, End):
                return
            elif isinstance(frame, Verified):
                if not self._verifying:
                    raise ProtocolError("the source verifies what was not asked")
                check_verdict(frame.fresh, self._ledger.complete)
                return
            else:
                self._note(frame)
                await self._verify_when_done()

    def _note(self, frame: Frame) -> None:
        match frame:
            case Watermark(first_block):
                self._ledger.publish(first_block, *_columns(frame))
                self._wake.set()
            case Seal(run=run):
                self._sealed_ns = self._clock.wall_ns()
                self._token_1 = run
                self._ledger.seal(*_columns(frame))
                self._wake.set()
            case Refused(reason):
                raise_refusal(reason)
            case Renewed():
                pass
            case _:
                raise ProtocolError(f"a source sends no {type(frame).__name__} here")

    async def _ask(self) -> None:
        """Keep a few reads in flight for what is wanted, once it is this pull's turn."""
        max_blocks = max(1, self._limits.max_read_bytes // self._memory.layout.block_bytes)
        async with self._slots:
            self._traffic.begin(self._request.attempt)
            self._start_ns = self._clock.wall_ns()
            while True:
                while len(self._in_flight) < self._limits.num_pipelined_reads:
                    blocks = self._ledger.next_read(max_blocks)
                    if blocks is None:
                        break
                    self._in_flight.append(blocks)
                    self._traffic.activate(self._request.attempt)
                    await self._stream.send(Read(*blocks))
                self._wake.clear()
                await self._wake.wait()

    async def _take(self, frame: Blocks, payload_bytes: int, group: asyncio.TaskGroup) -> None:
        """Receive the answer to the oldest read."""
        ids = unpack_ids(frame.block_ids)
        tags = list(map(Tag, ids, unpack_words(frame.generations, len(ids))))
        if not self._in_flight or self._in_flight[0] != (frame.first_block, len(tags)):
            raise ProtocolError("the source answers what was not asked")
        blocks = self._in_flight.popleft()
        if payload_bytes != blocks.num_blocks * self._memory.layout.block_bytes:
            raise ProtocolError("a payload is not as long as its blocks")
        self._wake.set()
        num_digested = max(1, DIGEST_BYTES // self._memory.layout.block_bytes)
        for start in range(0, blocks.num_blocks, num_digested):
            some = tags[start : start + num_digested]
            await self._fill(BlockRange(blocks.first_block + start, len(some)), some, group)
        if not self._in_flight:
            self._traffic.rest(self._request.attempt)
        self._num_bytes += payload_bytes

    async def _fill(
        self, blocks: BlockRange, tags: Sequence[Tag], group: asyncio.TaskGroup
    ) -> None:
        """Receive blocks into their destination; a thread digests them while the next arrive."""
        end = blocks.first_block + blocks.num_blocks
        block_ids = self._request.block_ids[blocks.first_block : end]
        versions = self._ledger.begin(blocks)
        await self._stream.receive_into(block_views(self._memory, block_ids), self._moved)
        digesting = self._digests.of(block_ids)
        self._digesting.append(digesting)
        group.create_task(self._check(blocks, versions, tags, digesting))

    async def _check(
        self,
        blocks: BlockRange,
        versions: Sequence[int],
        tags: Sequence[Tag],
        digesting: "asyncio.Future[tuple[int, ...]]",
    ) -> None:
        self._ledger.finish(blocks, versions, tags, await asyncio.shield(digesting))
        self._digesting.remove(digesting)
        self._wake.set()
        await self._verify_when_done()

    async def _verify_when_done(self) -> None:
        """R13: once, after SEAL and after the last read has been digested. Blocks that never
        match are asked about too: the answer tells reuse from damage."""
        if self._verifying or not self._ledger.idle:
            return
        self._verifying = True
        tags = self._ledger.tags()
        block_ids = pack_ids([tag.block_id for tag in tags])
        generations = pack_words([tag.generation for tag in tags])
        await self._stream.send(Verify(self._ledger.num_present_blocks, block_ids, generations))

    async def _renew(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            await self._stream.send(Renew())


def _columns(frame: Watermark | Seal) -> tuple[list[Tag], tuple[int, ...]]:
    ids = unpack_ids(frame.block_ids)
    tags = list(map(Tag, ids, unpack_words(frame.generations, len(ids))))
    return tags, unpack_words(frame.digests, len(ids))
