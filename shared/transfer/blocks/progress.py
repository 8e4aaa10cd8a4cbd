"""What the conversation of a pull and the bytes of it have in common."""

import asyncio
from typing import Protocol

from shared.clock import Clock
from shared.kv.layer_groups import LayerGroups
from shared.transfer.blocks.ledger import PullLedger
from shared.transfer.blocks.manifest import Part, Tags
from shared.transfer.frame_stream import FrameStream
from shared.transfer.frames import Frame
from shared.transfer.offers import LiveOffer
from shared.transfer.transport import PullRequest


class Progress:
    """How far one pull is: its ledger, and events for those that wait for it to change."""

    def __init__(self, request: PullRequest, groups: LayerGroups, clock: Clock) -> None:
        self.request = request
        self._clock = clock
        self.ledger = PullLedger(len(request.block_ids), request.num_present_blocks, groups)
        self.num_bytes = 0
        """payload that arrived"""
        self.published_ns = self.copied_ns = 0
        """wall clock: the last publication was heard, the last read ended"""
        self.changed = asyncio.Event()
        """there may be more to read; cleared by whoever reads"""
        self._is_near = False
        self.idle = asyncio.Event()
        """sealed, and the last read has ended: what is missing now stays missing"""

    def note_published(self) -> None:
        """The ledger knows of more blocks."""
        self.published_ns = self._clock.wall_ns()
        self.note()

    def note_copied(self) -> None:
        """A read has ended, and the ledger knows what it brought."""
        self.copied_ns = self._clock.wall_ns()
        self.note()

    def note(self) -> None:
        """The ledger has changed."""
        self.changed.set()
        if not self._is_near and self.ledger.nears_end:
            self._is_near = True
            self.request.on_nearing()
        if self.ledger.idle:
            self.idle.set()


class Reads(Protocol):
    """Decode's end: how the blocks of one pull come into their destination."""

    @property
    def name(self) -> str:
        """Of the way, as counters and traces call it."""

    @property
    def in_bursts(self) -> bool:
        """What comes early had better wait for more (`shared.transfer.bursts`)."""

    async def bring(self) -> None:
        """Read what the ledger wants, until it wants nothing more and no read is unanswered.
        Called when it is the pull's turn."""

    async def take(self, frame: Frame, payload_bytes: int) -> None:
        """What the source answers to a read or to the question whether blocks are fresh.
        ProtocolError if nothing like it was asked."""

    async def is_fresh(self, tags: Tags) -> bool:
        """R13, after the last read: these blocks of the source, the first one that is not present
        and all that follow, were not overwritten before that read ended."""

    async def settle(self) -> None:
        """Returns once nothing touches the destination; `bring` and `take` have ended."""


class Served(Protocol):
    """Prefill's end: how blocks leave. ProtocolError for what is not done here."""

    async def send(self, stream: FrameStream, offer: LiveOffer, part: Part) -> None:
        """Answer a Read: the bytes as they lie in the pool now."""

    async def show_pool(self, stream: FrameStream) -> None:
        """Let the reader map the pool, for as long as the connection stands."""
