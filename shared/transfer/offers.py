"""Prefill's record of the attempts it offers: what is published, its reader, until when.

    WRITING -> SEALED -> RELEASED | EXPIRED            on_release is called
    WRITING -> ENDED                                   remembered for one lease, so that a late
    any     -> WITHDRAWN                               reader learns it

Publications are digested outside the event loop, one after another, so SEAL and END stay behind
the pieces that came before them and the loop never waits. WRITING has no lease (R16).

The digest of a block is kept with its generation, so that a prefix offered again is not read
again. It is kept at SEAL only: until then prefill's engine held every block of the attempt, so
the bytes were whole when they were read.
"""

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from shared.clock import Clock
from shared.kv.memory import KVMemory, Piece
from shared.loops import Loops
from shared.protocol import Attempt, TokenRun
from shared.transfer.frames import Open, Refusal
from shared.transfer.lease import LeaseHeap
from shared.transfer.ledger import Tag
from shared.transfer.transport import OnRelease

logger = logging.getLogger(__name__)


class Digester(Protocol):
    """Digests blocks of the pool that is offered, wherever its bytes lie."""

    def digests(self, blocks: Sequence[int]) -> Awaitable[tuple[int, ...]]:
        """Of each block, in order, as it lies there."""


class OfferState(Enum):
    WRITING = "writing"
    SEALED = "sealed"
    ENDED = "ended"
    RELEASED = "released"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"
    CLOSED = "closed"


_REFUSALS: dict[OfferState, Refusal] = {
    OfferState.RELEASED: "released",
    OfferState.EXPIRED: "expired",
    OfferState.WITHDRAWN: "withdrawn",
    OfferState.CLOSED: "closed",
}


@dataclass(frozen=True)
class Publication:
    """A piece with the digests of its bytes."""

    first_block: int
    tags: tuple[Tag, ...]
    digests: tuple[int, ...]


class LiveOffer:
    """One attempt's offer; keeps the promise of `shared.transfer.transport.Offer`."""

    def __init__(self, attempt: Attempt, ticket: str, table: "OfferTable") -> None:
        self.attempt = attempt
        self.ticket = ticket
        self.state = OfferState.WRITING
        self.publications: list[Publication] = []
        self.run: TokenRun | None = None
        self.watchers: set[asyncio.Event] = set()
        """set at every change; one per reader"""
        self._table = table
        self._announced: set[int] = set()
        self._closed_for_writing = False
        self._published: dict[int, tuple[Tag, int]] = {}

    def publish(self, piece: Piece) -> None:
        if self._closed_for_writing:
            return
        self._table.submit(self, piece, None)
        end = piece.first_block + len(piece.block_ids)
        self._announced.update(range(piece.first_block, end))

    def seal(self, run: TokenRun) -> None:
        if self._closed_for_writing:
            return
        if not self._announced or self._announced != set(range(len(self._announced))):
            raise ValueError(f"sealed {self.attempt} with a gap in its pieces")
        self._closed_for_writing = True
        self._table.submit(self, None, run)

    def end(self) -> None:
        if not self._closed_for_writing:
            self._closed_for_writing = True
            self._table.submit(self, None, None)

    def withdraw(self) -> None:
        self._closed_for_writing = True
        if self.state in (OfferState.WRITING, OfferState.SEALED, OfferState.ENDED):
            self._table.drop(self, OfferState.WITHDRAWN)

    @property
    def refusal(self) -> Refusal | None:
        """Why nothing is served any more, or None."""
        return _REFUSALS.get(self.state)

    @property
    def manifest(self) -> Publication:
        """The publication in force for every block, in logical order."""
        entries = [self._published[logical] for logical in range(len(self._published))]
        return Publication(
            0, tuple(tag for tag, _ in entries), tuple(digest for _, digest in entries)
        )

    def tags(self, first_block: int, num_blocks: int) -> list[Tag] | None:
        """Tags in force for these blocks; None if one of them is not published."""
        logical_blocks = range(first_block, first_block + num_blocks)
        if not num_blocks or not all(logical in self._published for logical in logical_blocks):
            return None
        return [self._published[logical][0] for logical in logical_blocks]

    def add(self, publication: Publication) -> None:
        self.publications.append(publication)
        for offset, entry in enumerate(zip(publication.tags, publication.digests, strict=True)):
            self._published[publication.first_block + offset] = entry
        self.notify()

    def notify(self) -> None:
        for watcher in self.watchers:
            watcher.set()


class OfferTable:
    """All offers of one worker. Everything but the digests runs on the event loop."""

    def __init__(
        self,
        memory: KVMemory,
        lease_s: float,
        clock: Clock,
        digester: Digester,
    ) -> None:
        self._memory = memory
        self._lease_s = lease_s
        self.on_release: OnRelease = lambda attempt: None
        self._clock = clock
        self._digester = digester
        self._known: dict[int, tuple[int, int]] = {}
        """block id -> generation and digest of its bytes"""
        self._offers: dict[Attempt, LiveOffer] = {}
        self._leases: LeaseHeap[Attempt] = LeaseHeap()
        self._queue: asyncio.Queue[tuple[LiveOffer, Piece | None, TokenRun | None]]
        self._queue = asyncio.Queue()

    def __len__(self) -> int:
        return len(self._offers)

    def open(self, attempt: Attempt, ticket: str) -> LiveOffer:
        if attempt in self._offers:
            raise ValueError(f"{attempt} is offered already")
        offer = self._offers[attempt] = LiveOffer(attempt, ticket, self)
        return offer

    def admit(self, request: Open, incarnation: str) -> LiveOffer | Refusal:
        """Whether a reader may read (R14). A wrong ticket is answered like an unknown attempt."""
        if request.fingerprint != self._memory.layout.fingerprint():
            return "fingerprint"
        if request.source_incarnation != incarnation:
            return "incarnation"
        offer = self._offers.get(request.attempt)
        expected = offer.ticket if offer is not None else ""
        matches = hmac.compare_digest(expected.encode(), request.ticket.encode())
        return offer if offer is not None and matches else "unknown"

    def submit(self, offer: LiveOffer, piece: Piece | None, run: TokenRun | None) -> None:
        """A piece to publish; without one, a run to seal with; with neither, the end.

        ValueError on blocks that the pool does not have.
        """
        if piece is not None and not self._is_sound(piece):
            raise ValueError(f"{offer.attempt} published blocks that this pool does not have")
        self._queue.put_nowait((offer, piece, run))

    def start(self, loops: Loops) -> None:
        """Work through what is submitted, in order; free what ran out within a tenth of a
        lease."""
        loops.start("kv_offers", self._work_off_next)
        loops.start("kv_leases", self._expire, min(1.0, self._lease_s / 10))

    async def _work_off_next(self) -> None:
        offer, piece, run = await self._queue.get()
        if offer.state is not OfferState.WRITING:
            return
        try:
            if piece is not None:
                await self._publish(offer, piece)
            elif run is not None:
                self._seal(offer, run)
            else:
                self._end(offer)
        except Exception:
            offer.withdraw()  # its readers must not wait for what will not come
            raise

    async def _expire(self) -> None:
        self.expire()

    def expire(self) -> None:
        for attempt in self._leases.pop_expired(self._clock.monotonic_s()):
            offer = self._offers[attempt]
            if offer.state is OfferState.ENDED:
                self.drop(offer, OfferState.ENDED)
                continue
            logger.warning("the lease of %s ran out", attempt)
            self.drop(offer, OfferState.EXPIRED)
            self.on_release(attempt)

    def renew(self, offer: LiveOffer) -> None:
        if offer.attempt in self._leases:
            self._leases.renew(offer.attempt, self._clock.monotonic_s() + self._lease_s)

    def is_fresh(self, offer: LiveOffer, first_block: int, tags: Sequence[Tag]) -> bool:
        """VERIFY (R13): the offer stands, and these tags are the ones in force in it and in the
        pool. A generation is bumped before its block is rewritten, so an equal one now means
        that every read which ended before now saw the block whole."""
        if offer.state not in (OfferState.WRITING, OfferState.SEALED):
            return False
        if tags and offer.tags(first_block, len(tags)) != list(tags):
            return False
        generations = self._memory.generations
        return all(generations[tag.block_id] == tag.generation for tag in tags)

    def release(self, offer: LiveOffer) -> None:
        """Decode has a verified copy. Ignored unless the offer is sealed and stands."""
        if offer.state is OfferState.SEALED:
            self.drop(offer, OfferState.RELEASED)
            self.on_release(offer.attempt)

    def drop(self, offer: LiveOffer, state: OfferState) -> None:
        """Forget the offer; its readers are told the state."""
        offer.state = state
        self._leases.stop(offer.attempt)
        del self._offers[offer.attempt]
        offer.notify()
        for publication in offer.publications:
            self._memory.unmap_pages(tag.block_id for tag in publication.tags)

    def close(self) -> None:
        for offer in list(self._offers.values()):
            self.drop(offer, OfferState.CLOSED)

    def _is_sound(self, piece: Piece) -> bool:
        return (
            piece.first_block >= 0
            and 0 < len(piece.block_ids) == len(piece.generations)
            and min(piece.block_ids) >= 0
            and max(piece.block_ids) < self._memory.num_blocks
        )

    async def _publish(self, offer: LiveOffer, piece: Piece) -> None:
        tags = tuple(map(Tag, piece.block_ids, piece.generations))
        known = zip(tags, map(self._known_digest, tags), strict=True)
        digests = {tag: digest for tag, digest in known if digest is not None}
        new = [tag for tag in tags if tag not in digests]
        if new:
            found = await self._digester.digests([tag.block_id for tag in new])
            digests.update(zip(new, found, strict=True))
        if offer.state is OfferState.WRITING:
            offer.add(Publication(piece.first_block, tags, tuple(digests[tag] for tag in tags)))

    def _known_digest(self, tag: Tag) -> int | None:
        generation, digest = self._known.get(tag.block_id, (None, None))
        return digest if generation == tag.generation else None

    def _seal(self, offer: LiveOffer, run: TokenRun) -> None:
        offer.state, offer.run = OfferState.SEALED, run
        manifest = offer.manifest
        for tag, digest in zip(manifest.tags, manifest.digests, strict=True):
            self._known[tag.block_id] = tag.generation, digest
        self._leases.start(offer.attempt, self._clock.monotonic_s() + self._lease_s)
        offer.notify()

    def _end(self, offer: LiveOffer) -> None:
        offer.state = OfferState.ENDED
        self._leases.start(offer.attempt, self._clock.monotonic_s() + self._lease_s)
        offer.notify()
