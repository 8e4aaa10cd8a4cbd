"""What differs between the ways by which blocks travel, one part for each end."""

import socket
from typing import Protocol

from shared.transfer.blocks.progress import Progress, Reads, Served
from shared.transfer.frame_stream import FrameStream


class Listener(Protocol):
    """Prefill's end: where readers connect, and what they are served who came this way."""

    @property
    def served(self) -> Served: ...

    @property
    def address(self) -> str:
        """Where readers dial; empty unless open."""

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

    async def connect(self, source: str) -> FrameStream:
        """A stream to the source at an address, both ends introduced. PeerLostError if there is
        none."""

    def reads(self, progress: Progress, stream: FrameStream) -> Reads:
        """How the blocks of a pull over such a stream come."""

    async def close(self) -> None:
        """The pulls have ended."""
