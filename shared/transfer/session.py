"""Prefill's end of one pull connection.

Open      the attempt, its ticket, the layout and the incarnation are checked
writer    every publication as it happens, then SEAL, END or a refusal; answers in order
reader    Read, Verify, Renew until Release or the end of the connection

A connection that is opened to map the pool is shown it, and stays silent from then on, but where a
reader links to the pool (`blocks.linked`).
"""

import asyncio
import contextlib
import logging
from collections import deque

from shared.errors import CorruptPieceError, PeerLostError, ProtocolError
from shared.kv.columns import pack_words
from shared.kv.layer_groups import GroupRange
from shared.transfer.blocks.manifest import Part, Publication
from shared.transfer.blocks.progress import Served
from shared.transfer.frame_stream import FrameStream
from shared.transfer.frames import (
    MAX_OPEN_BYTES,
    End,
    Frame,
    Open,
    Opened,
    Read,
    Refusal,
    Refused,
    Release,
    Renew,
    Renewed,
    Seal,
    ShortSeal,
    Verified,
    Verify,
    Watermark,
    pack_tags,
    unpack_tags,
)
from shared.transfer.limits import TransferLimits
from shared.transfer.offers import LiveOffer, OfferState, OfferTable
from shared.transfer.traffic import Traffic

logger = logging.getLogger(__name__)

MAX_UNANSWERED = 64
"""requests a reader may have open; ours keeps a handful"""


class Session:
    """Serves one reader until it releases, leaves or breaks the protocol."""

    def __init__(
        self,
        stream: FrameStream,
        served: Served,
        incarnation: str,
        table: OfferTable,
        traffic: Traffic,
        limits: TransferLimits,
    ) -> None:
        self._stream = stream
        self._served = served
        self._incarnation = incarnation
        self._table = table
        self._traffic = traffic
        self._limits = limits
        self._unanswered: deque[Read | Verify | Renew] = deque()
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Never raises what a peer can cause; closes the connection."""
        try:
            await self._serve()
        except* PeerLostError:
            logger.debug("a reader left")
        except* (CorruptPieceError, ProtocolError) as group:
            logger.warning("a reader's frame is refused: %s", group.exceptions[0])
            await self._hang_up("damaged")
        finally:
            self._stream.close()

    async def _serve(self) -> None:
        opened = await self._opened()
        offer = await self._admit(opened)
        if offer is None:
            return
        if opened.purpose == "map":
            await self._served.show_pool(self._stream)
            return
        offer.watchers.add(self._changed)
        try:
            async with asyncio.TaskGroup() as group:
                writer = group.create_task(self._write(offer, opened))
                await self._read(offer)
                writer.cancel()
        finally:
            offer.watchers.discard(self._changed)

    async def _opened(self) -> Open:
        limit, self._stream.max_header_bytes = self._stream.max_header_bytes, MAX_OPEN_BYTES
        frame, payload_bytes = await self._stream.receive()
        self._stream.max_header_bytes = limit
        if not isinstance(frame, Open) or payload_bytes:
            raise ProtocolError("a reader's first frame is Open")
        return frame

    async def _admit(self, opened: Open) -> LiveOffer | None:
        admitted = self._table.admit(opened, self._incarnation)
        if not isinstance(admitted, LiveOffer):
            await self._hang_up(admitted)
            return None
        if opened.purpose == "pull":
            self._traffic.forget(admitted.attempt)
        await self._stream.send(Opened(round(self._limits.renew_every_s * 1000)))
        return admitted

    async def _read(self, offer: LiveOffer) -> None:
        """Until Release. Every frame is a sign of life that renews the lease."""
        while True:
            frame, payload_bytes = await self._stream.receive()
            if payload_bytes:
                raise ProtocolError("a reader sends no payload")
            self._table.renew(offer)
            self._traffic.num_signs += 1
            match frame:
                case Release():
                    self._table.release(offer)
                    return
                case Read() | Verify() | Renew():
                    self._unanswered.append(frame)
                    self._changed.set()
                case _:
                    raise ProtocolError(f"a reader sends no {type(frame).__name__}")
            if len(self._unanswered) > MAX_UNANSWERED:
                raise ProtocolError("a reader asks for more than it takes")

    async def _write(self, offer: LiveOffer, opened: Open) -> None:
        num_told = 0
        last_told = False
        while True:
            while num_told < len(offer.publications):
                await self._stream.send(_watermark(offer.publications[num_told]))
                num_told += 1
            if offer.refusal is not None:
                await self._stream.send(Refused(offer.refusal))
                return
            if not last_told and offer.state is not OfferState.WRITING:
                last_told = True
                short = opened.takes_short_seal
                await self._stream.send(_last_word(offer, num_told if short else None))
            elif self._unanswered:
                await self._answer(offer, self._unanswered.popleft())
            else:
                self._changed.clear()
                await self._changed.wait()

    async def _answer(self, offer: LiveOffer, request: Read | Verify | Renew) -> None:
        match request:
            case Read(first_block, num_blocks, first_group, num_groups):
                part = Part(first_block, num_blocks, GroupRange(first_group, num_groups))
                await self._served.send(self._stream, offer, part)
            case Verify(first_block, block_ids, generations):
                tags = unpack_tags(block_ids, generations)
                await self._stream.send(Verified(self._table.is_fresh(offer, first_block, tags)))
            case Renew():
                await self._stream.send(Renewed())

    async def _hang_up(self, reason: Refusal) -> None:
        with contextlib.suppress(PeerLostError):
            await self._stream.send(Refused(reason))
            await self._stream.finish_sending()


def _watermark(publication: Publication) -> Frame:
    part, digests = publication.part, pack_words(publication.digests)
    return Watermark(part.first_block, part.groups.first, *pack_tags(publication.tags), digests)


def _last_word(offer: LiveOffer, num_told: int | None) -> Frame:
    """`num_told`: publications, to a reader that need not hear them again."""
    if offer.run is None:
        return End()
    if num_told is not None:
        return ShortSeal(num_told, offer.run)
    manifest = offer.manifest
    return Seal(*pack_tags(manifest.tags), pack_words(manifest.digests), offer.run)
