"""What a worker's io process asks of the mover, one message a packet.

    io -> mover   Map, Watch, Show, Join, Invite, Accept, Meet, Give, Unmap, Probe, Fetch, Expect,
                  GiveUp, Digest, Stage, Fill; Map brings the descriptors of the source's pool,
                  Watch that of its first tokens
    mover -> io   Done, in the order of the questions, but for those about a worker that is joined
                  or linked

Block ids and digests travel as `shared.kv.columns` packs them.
"""

import typing
from dataclasses import dataclass
from typing import NamedTuple

from shared.codec import Codec
from shared.kv.columns import Words, unpack_ids
from shared.kv.layer_groups import GroupRange
from shared.kv.share import MAX_RANKS
from shared.protocol import Attempt

MAX_DIGESTS = 4096
"""that one message asks for, so that a packet always fits into a socket's buffer"""
MAX_PACKET_BYTES = 128 * 2**10
MAX_CARD_BYTES = 96 * 2**10
"""of what another worker says of itself: the cards of its ranks' agents take some each, that of a
link 200 bytes"""
LINK_BYTES = 32 * 2**20
"""that go over a link at a time, or one block; both ends know it"""
MAX_DESCRIPTORS = MAX_RANKS
"""of a source's pools"""


class TokenPlace(NamedTuple):
    """Where a source shows token 1 of an attempt: at the prompt's last block."""

    block: int
    generation: int


class LastFetch(NamedTuple):
    """What completes an attempt: once blocks are fetched and have these digests, all KV is here,
    and nothing of it is fetched again before `GiveUp`."""

    token_1: TokenPlace
    digests: Words
    """[blocks, groups], as published"""


@dataclass(frozen=True)
class Map:
    """Map the pool of another worker, read-only, until Unmap."""

    number: int
    source: str
    """incarnation of its owner"""
    num_blocks: int


@dataclass(frozen=True)
class Watch:
    """Map the first tokens of another worker, until Unmap."""

    number: int
    source: str
    num_blocks: int


@dataclass(frozen=True)
class Show:
    """How workers of other hosts can read our pool."""

    number: int
    name: str
    """our incarnation"""


@dataclass(frozen=True)
class Join:
    """Get ready to read the pool of another worker by its card, until Unmap."""

    number: int
    name: str
    """our incarnation"""
    source: str
    """incarnation of its owner"""
    num_blocks: int
    card: bytes


@dataclass(frozen=True)
class Invite:
    """Begin a link to a worker that reads our pool, until Unmap."""

    number: int
    peer: str
    """as Meet, Give and Unmap will call it"""
    host: str
    """the address by which the peer reaches this host"""


@dataclass(frozen=True)
class Accept:
    """Begin the other end of a link, until Unmap. What is asked of the source from now on waits
    until both ends have met."""

    number: int
    source: str
    """incarnation of its owner"""
    num_blocks: int
    card: bytes
    """that the source was invited with"""
    host: str


@dataclass(frozen=True)
class Meet:
    """The peer has accepted."""

    number: int
    peer: str
    card: bytes
    """its own"""


@dataclass(frozen=True)
class Give:
    """Send blocks of our own pool over a link, which the peer fetches in the same order; none: what
    follows the last block, which the peer probes."""

    number: int
    peer: str
    blocks: bytes
    first_group: int
    num_groups: int


@dataclass(frozen=True)
class Unmap:
    """Nothing is fetched from there, or given to it, any more. One that is neither mapped nor
    joined nor linked is no error."""

    number: int
    source: str


@dataclass(frozen=True)
class Probe:
    """Read what follows the last block of a mapped, joined or linked pool, as blocks are read."""

    number: int
    source: str


@dataclass(frozen=True)
class Fetch:
    """Copy blocks of a mapped, joined or linked pool into reserved blocks of our own."""

    number: int
    attempt: Attempt
    """whose blocks are filled: the steps that may still write them come first"""
    source: str
    source_blocks: bytes
    blocks: bytes
    first_group: int
    num_groups: int
    token_1: TokenPlace | None = None
    """to be expected, as by Expect, if what was copied has the digests `digests`"""
    digests: bytes = b""


@dataclass(frozen=True)
class Expect:
    """All KV of the attempt is here but not verified. The step loop may begin once its source
    shows token 1."""

    number: int
    attempt: Attempt
    source: str
    token_1: TokenPlace


@dataclass(frozen=True)
class GiveUp:
    """Blocks of the attempt are to be fetched again: do not begin. A problem if the step loop has
    begun."""

    number: int
    attempt: Attempt


@dataclass(frozen=True)
class Digest:
    """Digests of layer groups of blocks of our own pool, now; of a step, of the first groups only,
    one at least: those it has written."""

    number: int
    blocks: bytes
    first_group: int
    num_groups: int
    step: int | None = None


@dataclass(frozen=True)
class Stage:
    """Copy blocks of our own GPU's pool into the arena, one after the other from `offset` on."""

    number: int
    blocks: bytes
    first_group: int
    num_groups: int
    offset: int


@dataclass(frozen=True)
class Fill:
    """Copy what lies in the arena from `offset` on into reserved blocks of our own GPU's pool."""

    number: int
    attempt: Attempt
    blocks: bytes
    first_group: int
    num_groups: int
    offset: int


@dataclass(frozen=True)
class Done:
    """The answer to the question of that number."""

    number: int
    digests: bytes = b""
    """Fetch, Fill and Digest: of each block its groups, in order; Probe: of all its bytes; what was
    copied is digested where it lies now"""
    num_bytes: int = 0
    """Probe: how many were read"""
    seconds: float = 0.0
    """Probe: that the copy took"""
    problem: str = ""
    """why it could not be done; what was to be filled holds garbage"""
    card: bytes = b""
    """Show, Invite and Accept"""


Question = (
    Map
    | Watch
    | Show
    | Join
    | Invite
    | Accept
    | Meet
    | Give
    | Unmap
    | Probe
    | Fetch
    | Expect
    | GiveUp
    | Digest
    | Stage
    | Fill
)
Named = Fetch | Digest | Stage | Fill | Give


def block_ids(question: Named) -> list[int]:
    """The blocks of our own pool that it names."""
    blocks: list[int] = unpack_ids(question.blocks).tolist()
    return blocks


def group_range(question: Named) -> GroupRange:
    """Their layer groups that it names."""
    return GroupRange(question.first_group, question.num_groups)


CODEC = Codec((*typing.get_args(Question), Done))
