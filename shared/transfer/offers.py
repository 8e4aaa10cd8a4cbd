"""Prefill's record of the attempts it offers: what is published, its reader, until when.

    WRITING -> SEALED -> RELEASED | EXPIRED            on_release is called
    WRITING -> ENDED                                   remembered for one lease, so that a late
    any     -> WITHDRAWN                               reader learns it

What is submitted is worked off in order: a step's layer groups are digested and published as they
are written, those of all attempts of the step together. SEAL and END of an attempt follow its own
last piece, not what was submitted since: a step is announced before the one in front of it is
booked, and its groups take as long as it runs. The event loop never waits. WRITING has no lease
(R16).

Digests of a block are kept with its generation, so that a prefix offered again is not read again.
They are kept at SEAL only: until then prefill's engine held every block of the attempt, so the
bytes were whole when they were read.
"""

import asyncio
import hmac
import logging
from collections import deque
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shared.clock import Clock
from shared.errors import PeerLostError
from shared.kv.columns import Words
from shared.kv.layer_groups import GroupRange, layer_groups
from shared.kv.memory import KVMemory, Piece
from shared.loops import Loops
from shared.protocol import Attempt, TokenRun
from shared.transfer.blocks.manifest import Manifest, Part, Publication, Tags
from shared.transfer.frames import Open, Refusal
from shared.transfer.lease import LeaseHeap
from shared.transfer.transport import OnRelease

logger = logging.getLogger(__name__)


class Digester(Protocol):
    """Digests blocks of the pool that is offered, wherever its bytes lie."""

    def digests(
        self, blocks: Sequence[int], groups: GroupRange, step: int | None
    ) -> Awaitable[Words]:
        """[blocks, groups], of the bytes as they lie there now; of a step, of the first groups
        only, one at least, once it has written them."""


@dataclass
class _Submission:
    """Pieces of one step, or of one attempt before it."""

    step: int | None
    pieces: list[tuple["LiveOffer", Piece]]
    ends: list[tuple["LiveOffer", TokenRun | None]] = field(default_factory=list)
    """offers whose last pieces these are; sealed with the run, ended without one"""

    def has(self, offer: "LiveOffer") -> bool:
        return any(other is offer for other, _ in self.pieces)


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
        self.manifest = Manifest(len(table.groups))
        self._table = table
        self._announced = np.zeros(0, bool)
        self._closed_for_writing = False

    def publish(self, piece: Piece, step: int | None = None) -> None:
        if self._closed_for_writing:
            return
        self._table.submit(self, piece, step)
        end = piece.first_block + len(piece.block_ids)
        self._announced = np.pad(self._announced, (0, max(0, end - len(self._announced))))
        self._announced[piece.first_block : end] = True

    def seal(self, run: TokenRun) -> None:
        if self._closed_for_writing:
            return
        if not len(self._announced) or not self._announced.all():
            raise ValueError(f"sealed {self.attempt} with a gap in its pieces")
        self._closed_for_writing = True
        self._table.submit_end(self, run)

    def end(self) -> None:
        if not self._closed_for_writing:
            self._closed_for_writing = True
            self._table.submit_end(self, None)

    def withdraw(self) -> None:
        self._closed_for_writing = True
        if self.state in (OfferState.WRITING, OfferState.SEALED, OfferState.ENDED):
            self._table.drop(self, OfferState.WITHDRAWN)

    @property
    def refusal(self) -> Refusal | None:
        """Why nothing is served any more, or None."""
        return _REFUSALS.get(self.state)

    def tags(self, part: Part) -> Tags | None:
        """In force for its blocks; None if not all of it is published."""
        rows, _ = part.cells
        return self.manifest.tags[rows] if self.manifest.has(part) else None

    def add(self, publication: Publication) -> None:
        self.publications.append(publication)
        self.manifest.put(publication)
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
        self.layout = memory.layout
        self._memory = memory
        self._lease_s = lease_s
        self.on_release: OnRelease = lambda attempt: None
        self._clock = clock
        self._digester = digester
        self.groups = layer_groups(memory.layout)
        self._known = _KnownDigests(memory.num_blocks, len(self.groups))
        self._offers: dict[Attempt, LiveOffer] = {}
        self._leases: LeaseHeap[Attempt] = LeaseHeap()
        self._submitted: deque[_Submission] = deque()
        self._in_work: _Submission | None = None
        self._any_submitted = asyncio.Event()

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

    def submit(self, offer: LiveOffer, piece: Piece, step: int | None) -> None:
        """To publish, group by group, as the step writes it; without a step, all at once.

        ValueError on blocks that the pool does not have.
        """
        if not self._is_sound(piece):
            raise ValueError(f"{offer.attempt} published blocks that this pool does not have")
        newest = self._submitted[-1] if self._submitted else None
        if newest is not None and step is not None and newest.step == step:
            newest.pieces.append((offer, piece))
        else:
            self._submitted.append(_Submission(step, [(offer, piece)]))
            self._any_submitted.set()

    def submit_end(self, offer: LiveOffer, run: TokenRun | None) -> None:
        """A run to seal with; without it, the end. At once if all its pieces are published."""
        for submission in (*reversed(self._submitted), self._in_work):
            if submission is not None and submission.has(offer):
                submission.ends.append((offer, run))
                return
        self._end(offer, run)

    def start(self, loops: Loops) -> None:
        """Work through what is submitted, in order; free what ran out within a tenth of a
        lease."""
        loops.start("kv_offers", self._work_off_next)
        loops.start("kv_leases", self._expire, min(1.0, self._lease_s / 10))

    async def _work_off_next(self) -> None:
        while not self._submitted:
            self._any_submitted.clear()
            await self._any_submitted.wait()
        submission = self._in_work = self._submitted.popleft()
        try:
            left = self.groups.all
            while left.num:
                number = await self._publish(submission, left)
                left = GroupRange(left.first + number, left.num - number)
            for offer, run in submission.ends:
                self._end(offer, run)
        except PeerLostError:
            raise  # the engine is gone, and this process after it: its readers see a source lost
        except Exception:
            for offer, _ in submission.pieces:
                offer.withdraw()  # its readers must not wait for what will not come
            raise
        finally:
            self._in_work = None

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

    def is_fresh(self, offer: LiveOffer, first_block: int, tags: Tags) -> bool:
        """VERIFY (R13): the offer stands, and these tags are the ones in force in it and in the
        pool. A generation is bumped before its block is rewritten, so an equal one now means
        that every read which ended before now saw the block whole."""
        if offer.state not in (OfferState.WRITING, OfferState.SEALED):
            return False
        if not len(tags):
            return True
        in_force = offer.tags(Part(first_block, len(tags), self.groups.all))
        return (
            in_force is not None
            and bool(in_force.equal(tags).all())
            and tags.hold(np.frombuffer(self._memory.generations, np.uint64))
        )

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
            self._memory.unmap_pages(publication.tags.block_ids.tolist())

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

    async def _publish(self, submission: _Submission, groups: GroupRange) -> int:
        """Of all its pieces the first of these groups, with digests that are known or asked for in
        one go; returns how many."""
        pieces = [
            (offer, piece.first_block, Tags.of(piece.block_ids, piece.generations))
            for offer, piece in submission.pieces
            if offer.state is OfferState.WRITING
        ]
        unknown = [self._known.lacks(tags) for _, _, tags in pieces]
        asked = [
            block
            for (_, _, tags), lacking in zip(pieces, unknown, strict=True)
            for block in tags.block_ids[lacking].tolist()
        ]
        found = None
        if asked:
            found = await self._digester.digests(asked, groups, submission.step)
            groups = GroupRange(groups.first, found.shape[1])
        for (offer, first_block, tags), lacking in zip(pieces, unknown, strict=True):
            digests = self._known.digests(tags, groups)
            if found is not None:
                own, found = np.split(found, [int(lacking.sum())])
                digests[lacking] = own
            if offer.state is OfferState.WRITING:
                part = Part(first_block, len(tags), groups)
                offer.add(Publication(part, tags, digests))
        return groups.num

    def _end(self, offer: LiveOffer, run: TokenRun | None) -> None:
        if offer.state is not OfferState.WRITING:
            return
        offer.state = OfferState.ENDED if run is None else OfferState.SEALED
        offer.run = run
        if run is not None:
            self._known.keep(offer.manifest)
        self._leases.start(offer.attempt, self._clock.monotonic_s() + self._lease_s)
        offer.notify()


class _KnownDigests:
    """Digests of blocks of the pool that were sealed, by block; good for one generation."""

    def __init__(self, num_blocks: int, num_groups: int) -> None:
        self._generations = np.zeros(num_blocks, np.uint64)
        self._is_known = np.zeros(num_blocks, bool)
        self._digests = np.zeros((num_blocks, num_groups), np.uint64)

    def keep(self, manifest: Manifest) -> None:
        ids = manifest.tags.block_ids
        self._generations[ids] = manifest.tags.generations
        self._is_known[ids] = True
        self._digests[ids] = manifest.digests

    def lacks(self, tags: Tags) -> NDArray[np.bool_]:
        """[blocks]: whose digests are not known."""
        ids = tags.block_ids
        same: NDArray[np.bool_] = self._generations[ids] == tags.generations
        lacks: NDArray[np.bool_] = ~(self._is_known[ids] & same)
        return lacks

    def digests(self, tags: Tags, groups: GroupRange) -> Words:
        """[blocks, groups], a copy; what is lacking means nothing."""
        return self._digests[tags.block_ids, groups.first : groups.end]
