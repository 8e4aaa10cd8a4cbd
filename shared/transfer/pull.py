"""Decode's end of one pull connection: the conversation, whichever way the blocks come.

Open -> Opened     the source knows the attempt
Watermark          its blocks are wanted from now on, while prefill computes; read in bursts
Seal, ShortSeal    tags that differ from the manifest are read again (R12)
verify             once, when nothing is missing and the last read has ended (R13)
Release
"""

import asyncio
import contextlib
import logging

from shared.clock import Clock
from shared.errors import KVTransferError, PeerLostError, ProtocolError
from shared.protocol import TokenRun
from shared.transfer.blocks.progress import Progress, Reads
from shared.transfer.bursts import Bursts
from shared.transfer.failure import check_verdict, pull_failure, raise_refusal
from shared.transfer.frame_stream import FrameStream
from shared.transfer.frames import (
    Blocks,
    End,
    Open,
    Opened,
    Purpose,
    Refused,
    Release,
    Renew,
    Renewed,
    Seal,
    ShortSeal,
    Verified,
    Watermark,
    unpack_manifest,
    unpack_publication,
)
from shared.transfer.limits import TransferLimits
from shared.transfer.traffic import Traffic
from shared.transfer.transport import Pulled, PullRequest

logger = logging.getLogger(__name__)

MIN_RENEW_S = 0.01


async def open_attempt(
    stream: FrameStream, request: PullRequest, fingerprint: str, purpose: Purpose
) -> float:
    """Show the ticket; returns how often the source wants a sign of life, in seconds. The error
    that a refusal means, ProtocolError when something else is answered."""
    source = request.source_incarnation
    opening = Open(
        request.attempt, request.ticket, source, fingerprint, purpose, takes_short_seal=True
    )
    await stream.send(opening)
    frame, _ = await stream.receive()
    if isinstance(frame, Refused):
        raise_refusal(frame.reason)
    if not isinstance(frame, Opened):
        raise ProtocolError("the source's first frame is Opened or Refused")
    return max(MIN_RENEW_S, frame.renew_every_ms / 1000)


class Pull:
    """One pull over an open connection. `slots` bounds how many pulls read at once; a pull that
    waits for its turn keeps its lease."""

    def __init__(
        self,
        progress: Progress,
        stream: FrameStream,
        fingerprint: str,
        slots: asyncio.Semaphore,
        traffic: Traffic,
        limits: TransferLimits,
        clock: Clock,
    ) -> None:
        self._progress = progress
        self._request = progress.request
        self._ledger = progress.ledger
        self._stream = stream
        self._fingerprint = fingerprint
        self._slots = slots
        self._traffic = traffic
        self._limits = limits
        self._clock = clock
        self._bursts = Bursts(self._ledger.num_bytes, clock)
        self._over = asyncio.Event()
        self._start_ns = self._sealed_ns = clock.wall_ns()
        self._token_1: TokenRun | None = None
        self._num_watermarks = 0

    async def run(self, reads: Reads) -> Pulled:
        """The verified hand-over, released. KVTransferError of the kind that the contract names;
        whichever way it ends, nothing touches the destination any more."""
        try:
            return await self._pull(reads)
        except* (KVTransferError, ProtocolError) as group:
            failure = pull_failure(group)
        raise failure

    async def keep(self) -> None:
        """Renew the lease and read nothing, until cancelled or the source has no more to say."""
        try:
            renew_every_s = await self._open("keep")
            async with asyncio.TaskGroup() as group:
                renewing = group.create_task(self._renew(renew_every_s))
                while not isinstance((await self._stream.receive())[0], Refused | End):
                    pass
                renewing.cancel()
        except* (KVTransferError, ProtocolError) as errors:
            logger.info("the lease of %s is not kept: %s", self._request.attempt, errors)

    async def _pull(self, reads: Reads) -> Pulled:
        renew_every_s = await self._open("pull")
        try:
            async with asyncio.TaskGroup() as group:
                parts = [
                    group.create_task(self._listen(reads)),
                    group.create_task(self._bring(reads)),
                    group.create_task(self._verify(reads)),
                    group.create_task(self._renew(renew_every_s)),
                ]
                await self._over.wait()
                for part in parts:
                    part.cancel()
        finally:
            self._traffic.rest(self._request.attempt)
            await reads.settle()
        end_ns = self._clock.wall_ns()
        with contextlib.suppress(PeerLostError):
            await self._stream.send(Release())
        return Pulled(
            run=self._token_1,
            num_bytes=self._progress.num_bytes,
            num_blocks=self._ledger.num_read_blocks,
            start_ns=self._start_ns,
            sealed_ns=self._sealed_ns,
            end_ns=end_ns,
            transport=reads.name,
            busy_s=self._traffic.busy_s(self._request.attempt),
            num_reread=self._ledger.num_reread,
            published_ns=self._progress.published_ns,
            copied_ns=self._progress.copied_ns,
        )

    async def _open(self, purpose: Purpose) -> float:
        asked_s = await open_attempt(self._stream, self._request, self._fingerprint, purpose)
        return min(asked_s, self._limits.renew_every_s)

    async def _listen(self, reads: Reads) -> None:
        """Until the source's last word: End, or the answer to Verify."""
        while True:
            frame, payload_bytes = await self._stream.receive()
            if payload_bytes and not isinstance(frame, Blocks):
                raise ProtocolError(f"{type(frame).__name__} has no payload")
            match frame:
                case Watermark():
                    self._num_watermarks += 1
                    self._ledger.publish(unpack_publication(frame))
                    self._progress.note_published()
                case Seal() | ShortSeal():
                    self._sealed_ns = self._clock.wall_ns()
                    self._token_1 = frame.run
                    self._seal(frame)
                case End():
                    self._over.set()
                    return
                case Refused(reason):
                    raise_refusal(reason)
                case Renewed():
                    pass
                case _:
                    await reads.take(frame, payload_bytes)
                    if isinstance(frame, Verified):
                        return

    def _seal(self, frame: Seal | ShortSeal) -> None:
        if isinstance(frame, Seal):
            self._ledger.seal(*unpack_manifest(frame))
        elif frame.num_watermarks == self._num_watermarks:
            self._ledger.seal_published()
        else:
            raise ProtocolError(f"{self._num_watermarks} of {frame.num_watermarks} watermarks came")
        self._progress.note()

    async def _bring(self, reads: Reads) -> None:
        """Read what is wanted, whenever that is due and it is this pull's turn. Between two bursts
        it is another's."""
        while True:
            await self._until_due(reads.in_bursts)
            self._traffic.wait(self._request.attempt)
            async with self._slots:
                self._traffic.begin(self._request.attempt)
                if not self._progress.num_bytes:
                    self._start_ns = self._clock.wall_ns()
                await reads.bring()

    async def _until_due(self, in_bursts: bool) -> None:
        """`changed` is cleared before the ledger is asked, so no want is missed."""
        while True:
            self._progress.changed.clear()
            if self._is_due() if in_bursts else self._ledger.num_wanted_bytes:
                return
            await self._progress.changed.wait()

    def _is_due(self) -> bool:
        ledger, bytes_s = self._ledger, self._traffic.bytes_s(self._request.source_incarnation)
        return self._bursts.is_due(ledger.num_published_bytes, ledger.num_wanted_bytes, bytes_s)

    async def _verify(self, reads: Reads) -> None:
        """R13: once, after SEAL and after the last read has been digested. Blocks that never
        match are asked about too: the answer tells reuse from damage."""
        await self._progress.idle.wait()
        check_verdict(await reads.is_fresh(self._ledger.tags()), self._ledger.complete)
        self._over.set()

    async def _renew(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            await self._stream.send(Renew())
