"""The first bytes of every link and every KV pull: both ends prove that they know the cell secret.

    greeting  both ways at once   "BATON", channel, versions, a nonce of 32 bytes
    proof     dialler first       HMAC-SHA256(secret, direction, both greetings)
    proof     listener            the same for its direction; zeros if the dialler's was wrong

Both ends name the versions of the protocol that they speak; the newest that both do is spoken from
then on. The proofs cover both greetings as they were sent and heard, so nobody without the secret
chooses an older one. The greeting itself stays as it is in every version: each can tell a peer of
any other what is wrong.

Sizes are fixed and nothing is decoded, so a stranger is hung up on before one frame is read. The
dialling side proves first: a listener never signs anything for a stranger. An empty secret takes
the same steps and keeps out only peers that do not speak this protocol. What follows on the
connection is neither encrypted nor signed.
"""

import hashlib
import hmac
import logging
import secrets
import struct
from typing import Literal, NamedTuple

from shared.errors import ProtocolError

logger = logging.getLogger(__name__)

Channel = Literal["link", "pull"]

TIMEOUT_S = 5.0
"""from the connection to the last proof"""
MIN_SECRET_CHARS = 16
"""shorter ones may be guessed from a challenge that was heard"""
NONCE_BYTES = 32
PROOF_BYTES = 32
REFUSED = bytes(PROOF_BYTES)
"""in place of the listener's proof"""

_MAGIC = b"BATON"
_CHANNELS: dict[Channel, bytes] = {"link": b"L", "pull": b"P"}
_GREETING = struct.Struct(f">5scBB{NONCE_BYTES}s")
"""magic, channel, how many older versions are spoken too, the newest version, nonce"""
GREETING_BYTES = _GREETING.size


def purpose_key(cell_secret: str, purpose: str) -> bytes:
    """A key of 32 bytes for one purpose; it tells nothing of the secret or of other keys."""
    return hmac.new(cell_secret.encode(), b"baton " + purpose.encode(), hashlib.sha256).digest()


def warn_if_short(cell_secret: str) -> None:
    """Not a refusal: a network may be closed by other means."""
    if 0 < len(cell_secret) < MIN_SECRET_CHARS:
        logger.warning(
            "BATON_CELL_SECRET has fewer than %d characters and may be guessed; "
            "`openssl rand -hex 32` makes a good one",
            MIN_SECRET_CHARS,
        )


class Versions(NamedTuple):
    """Of the protocol, those that a process speaks: all from the oldest to the newest."""

    oldest: int
    newest: int

    def common(self, other: "Versions") -> int | None:
        """The newest that both speak."""
        newest = min(self.newest, other.newest)
        return newest if newest >= max(self.oldest, other.oldest) else None

    def __str__(self) -> str:
        if self.oldest == self.newest:
            return f"version {self.newest}"
        return f"versions {self.oldest}..{self.newest}"


class Challenge:
    """One end's steps, without I/O. Send `greeting`, then give `receive` exactly `num_expected`
    bytes and send what it returns, until `done`."""

    def __init__(
        self, cell_secret: str, channel: Channel, spoken: Versions, *, dials: bool
    ) -> None:
        self._key = purpose_key(cell_secret, "challenge")
        self._channel = _CHANNELS[channel]
        self._spoken = spoken
        self._dials = dials
        num_older = spoken.newest - spoken.oldest
        nonce = secrets.token_bytes(NONCE_BYTES)
        self.greeting = _GREETING.pack(_MAGIC, self._channel, num_older, spoken.newest, nonce)
        """what either end says first, whatever it hears"""
        self._peer_greeting = b""
        self.version = 0
        """the one that both ends speak, once the peer has greeted"""
        self.done = False

    @property
    def num_expected(self) -> int:
        """Bytes of the peer's next step."""
        return PROOF_BYTES if self._peer_greeting else GREETING_BYTES

    def receive(self, step: bytes) -> bytes:
        """The answer to the peer's next step. ChallengeError when it is a stranger; what the
        error carries as `answer` is still to be sent."""
        if not self._peer_greeting:
            self._read_greeting(step)
            return self._proof(by_dialler=True) if self._dials else b""
        if not hmac.compare_digest(step, self._proof(by_dialler=not self._dials)):
            raise OtherSecretError(b"" if self._dials else REFUSED)
        self.done = True
        return b"" if self._dials else self._proof(by_dialler=False)

    def _read_greeting(self, greeting: bytes) -> None:
        magic, channel, num_older, newest, _ = _GREETING.unpack(greeting)
        if magic != _MAGIC:
            raise ChallengeError("peer does not greet as a Baton does")
        theirs = Versions(newest - num_older, newest)
        version = self._spoken.common(theirs)
        if version is None:
            raise OtherVersionError(theirs, self._spoken)
        if channel != self._channel:
            raise ChallengeError("peer wants another port: links and KV pulls have one each")
        self._peer_greeting, self.version = greeting, version

    def _proof(self, *, by_dialler: bool) -> bytes:
        greetings = (self.greeting, self._peer_greeting)
        dialler, listener = greetings if self._dials else greetings[::-1]
        said = bytes([by_dialler]) + dialler + listener
        return hmac.new(self._key, said, hashlib.sha256).digest()


class ChallengeError(ProtocolError):
    """The peer is a stranger, or a Baton too many versions away."""

    def __init__(self, message: str, answer: bytes = b"") -> None:
        super().__init__(message)
        self.answer = answer


class OtherVersionError(ChallengeError):
    def __init__(self, theirs: Versions, ours: Versions) -> None:
        super().__init__(f"peer speaks {theirs}, this is {ours}: upgrade one version at a time")


class OtherSecretError(ChallengeError):
    def __init__(self, answer: bytes) -> None:
        super().__init__(
            "peer has another cell secret; give all processes the same BATON_CELL_SECRET", answer
        )
