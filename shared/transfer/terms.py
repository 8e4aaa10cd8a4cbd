"""On what terms a worker talks to its peers: the secret, the limits, the clock, the account."""

import socket

from shared.challenge import Challenge, ChallengeError
from shared.clock import Clock, SystemClock
from shared.errors import PeerLostError
from shared.protocol import SPOKEN
from shared.transfer.frame_stream import FrameStream
from shared.transfer.limits import TransferLimits
from shared.transfer.traffic import Traffic


class Terms:
    """Of one transport; all its parts share them."""

    def __init__(
        self,
        cell_secret: str = "",
        limits: TransferLimits | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.cell_secret = cell_secret
        self.limits = limits or TransferLimits()
        self.clock = clock or SystemClock()
        self.traffic = Traffic(self.clock)

    def stream(self, sock: socket.socket) -> FrameStream:
        """Takes the socket over."""
        return FrameStream(sock, self.limits.progress_timeout_s)

    async def introduce(self, sock: socket.socket) -> FrameStream:
        """A stream to the source that was dialled, once both ends have proved themselves.
        PeerLostError, and closed, if not."""
        stream = self.stream(sock)
        try:
            await stream.introduce(Challenge(self.cell_secret, "pull", SPOKEN, dials=True))
        except BaseException as error:
            stream.close()
            if isinstance(error, ChallengeError):
                raise PeerLostError(f"the source cannot be pulled from: {error}") from None
            raise
        return stream
