"""What differs between the ways by which blocks travel, one part for each end."""

import logging
import socket
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from shared.errors import KVTransferError
from shared.transfer.blocks.progress import Progress, Reads, Served
from shared.transfer.frame_stream import FrameStream
from shared.transfer.transport import PullRequest
from shared.transfer_address import TransferAddress

logger = logging.getLogger(__name__)

NAMED = "named by --transport"
MOST_TOLD = 1000
"""sources; then the log begins again"""


class Listener(Protocol):
    """Prefill's end: where readers connect, and what those are served that came this way."""

    @property
    def served(self) -> Served: ...

    @property
    def address(self) -> TransferAddress:
        """Where readers dial; nowhere unless open."""

    def open(self) -> socket.socket:
        """Listen. OSError or SettingsError when it cannot."""

    def objection(self, sock: socket.socket) -> str:
        """Why the peer of a new connection is not even challenged, or nothing."""

    def close(self) -> None:
        """Safe to call twice."""


class Way(Protocol):
    """Decode's end: how a source is reached, and how its blocks come."""

    @property
    def name(self) -> str:
        """As counters and traces call it."""

    async def connect(self, source: TransferAddress) -> FrameStream:
        """A stream to the source, both ends introduced. PeerLostError if there is none."""

    def reads(self, progress: Progress, stream: FrameStream) -> Reads:
        """How the blocks of a pull over such a stream come."""

    async def close(self) -> None:
        """The pulls have ended."""


class Choice(NamedTuple):
    """The way to a source."""

    way: Way
    why: str


class Ways(Protocol):
    """By which way a pull goes."""

    @property
    def names(self) -> Sequence[str]:
        """Of all that it may go by."""

    async def of(self, request: PullRequest) -> Choice:
        """Decides for the source, if that is not decided. KVTransferError if none leads there."""

    def decided(self, request: PullRequest) -> Way:
        """What is decided for the source; else a way that a sign of life may go by."""

    def note(self, request: PullRequest, way: Way, error: KVTransferError | None) -> None:
        """How a pull ended; None: well."""

    async def close(self) -> None:
        """The pulls have ended."""


class OneWay:
    """Keeps the promise of `Ways` where there is no choice."""

    def __init__(self, way: Way) -> None:
        self.names = (way.name,)
        self._way = way
        self._told: set[str] = set()
        """sources that the log names"""

    async def of(self, request: PullRequest) -> Choice:
        return Choice(self.decided(request), NAMED)

    def decided(self, request: PullRequest) -> Way:
        del request
        return self._way

    def note(self, request: PullRequest, way: Way, error: KVTransferError | None) -> None:
        """Nothing else leads to the source; that this does is logged once."""
        incarnation = request.source_incarnation
        if error is not None or incarnation in self._told:
            return
        if len(self._told) >= MOST_TOLD:
            self._told.clear()
        self._told.add(incarnation)
        logger.info("KV of %s (%s) comes by %s: %s", incarnation, request.source, way.name, NAMED)

    async def close(self) -> None:
        await self._way.close()
