"""What decode and prefill say on a pull connection, and its bytes.

    prefix   magic, sequence number, header length, payload length, CRC-32 of the header,
             CRC-32 of the prefix itself                    28 bytes, big-endian
    header   one message of this module, as `shared.codec` encodes it
    payload  the blocks' bytes in the order asked for; only after Blocks

Frames of one direction are numbered from 0, so one that is lost, doubled or out of turn is
seen. A CRC-32 finds every single-bit error and every burst of up to 32 bits; payload is guarded
by a 64-bit digest per block and layer group (`shared.kv.digest`), announced before the bytes are
asked for.

    decode -> prefill: Open, Read, Verify, Release, Renew, Invite, Card, Give
    prefill -> decode: Opened, Watermark, Blocks, Seal, ShortSeal, End, Verified, Renewed, Refused,
                       Pool, Card

Columns travel as packed little-endian integers, so that a frame's length depends on the number of
blocks and not on their ids: block ids u32, generations u64, digests u64 with the groups of a block
side by side. `shared.protocol` counts the versions.
"""

import struct
import typing
import zlib
from dataclasses import dataclass
from typing import Literal

from shared.codec import Codec
from shared.errors import CorruptPieceError, ProtocolError
from shared.kv.columns import Words, pack_ids, pack_words, unpack_ids, unpack_words
from shared.kv.layer_groups import GroupRange
from shared.mover.messages import MAX_CARD_BYTES
from shared.protocol import Attempt, TokenRun
from shared.transfer.blocks.manifest import Part, Publication, Tags

MAGIC = b"BtKV"
MAX_HEADER_BYTES = 16 * 2**20
"""at most 76 bytes per block in a Seal: 220,000 blocks in one sequence"""
MAX_OPEN_BYTES = 4096
"""header of a connection that has not shown its ticket yet"""

Refusal = Literal[
    "fingerprint", "incarnation", "unknown", "withdrawn", "expired", "released", "damaged", "closed"
]
Purpose = Literal["pull", "keep", "map"]
"""pull: read the attempt's blocks; keep: only its lease, the blocks to read into are not there
yet; map: be shown the pool that they lie in, to map it, to read it or to be given its blocks"""


@dataclass(frozen=True)
class Open:
    """First frame: which attempt, and the proof that the gateway sent us."""

    attempt: Attempt
    ticket: str
    source_incarnation: str
    fingerprint: str
    purpose: Purpose = "pull"
    takes_short_seal: bool = False


@dataclass(frozen=True)
class Opened:
    """Accepted. The reader shows a sign of life at least this often."""

    renew_every_ms: int


@dataclass(frozen=True)
class Watermark:
    """Layer groups of consecutive blocks are complete: the blocks' tags, and the digests of their
    bytes, as many to a block as there are groups."""

    first_block: int
    first_group: int
    block_ids: bytes
    generations: bytes
    digests: bytes


@dataclass(frozen=True)
class Read:
    """Send these consecutive layer groups of consecutive logical blocks."""

    first_block: int
    num_blocks: int
    first_group: int
    num_groups: int


@dataclass(frozen=True)
class Blocks:
    """Payload follows, block after block: what the oldest Read names, under these tags."""

    first_block: int
    block_ids: bytes
    generations: bytes


@dataclass(frozen=True)
class Seal:
    """The manifest of the whole prompt, all layer groups, and token 1."""

    block_ids: bytes
    generations: bytes
    digests: bytes
    run: TokenRun


@dataclass(frozen=True)
class ShortSeal:
    """The manifest is what the watermarks of this connection say, and token 1. Of a long prompt a
    Seal takes a millisecond. Only to readers that take it."""

    num_watermarks: int
    run: TokenRun


@dataclass(frozen=True)
class End:
    """Token 1 ended the request; nothing is left to hand over."""


@dataclass(frozen=True)
class Verify:
    """Do these blocks still hold what they held? Asked after the last read."""

    first_block: int
    block_ids: bytes
    generations: bytes


@dataclass(frozen=True)
class Verified:
    fresh: bool
    """every tag equals the manifest and the pool, and the offer stands"""


@dataclass(frozen=True)
class Release:
    """Decode has its copy; prefill may free the blocks. The last frame."""


@dataclass(frozen=True)
class Renew:
    """Decode is alive and still wants the blocks."""


@dataclass(frozen=True)
class Renewed:
    """Prefill is alive."""


@dataclass(frozen=True)
class Refused:
    """Nothing more will be served here, and why."""

    reason: Refusal


@dataclass(frozen=True)
class Pool:
    """The pool that all blocks lie in. Over a unix socket one byte with its descriptors follows.
    What the reader makes of it stands as long as the connection, over which nothing more is said
    but by a reader that links to the pool."""

    num_blocks: int
    probe: bytes
    """digest of what follows its last block"""
    card: bytes = b""
    """how the agent of another host reads it"""
    problem: str = ""
    """why it has no card"""
    has_first_tokens: bool = False
    """its file ends with them"""
    link: str = ""
    """by what a reader links to it; nothing: it cannot"""


@dataclass(frozen=True)
class Invite:
    """Begin a link. Answered by a Card, which is to be answered by another."""


@dataclass(frozen=True)
class Card:
    """What the other end of the link needs to meet this one."""

    card: bytes
    problem: str = ""
    """why there can be no link"""


@dataclass(frozen=True)
class Give:
    """Send these layer groups of blocks of the pool over the link; no blocks: the probe."""

    block_ids: bytes
    first_group: int
    num_groups: int


Frame = (
    Open
    | Opened
    | Watermark
    | Read
    | Blocks
    | Seal
    | ShortSeal
    | End
    | Verify
    | Verified
    | Release
    | Renew
    | Renewed
    | Refused
    | Pool
    | Invite
    | Card
    | Give
)

CODEC = Codec(typing.get_args(Frame))

_FIELDS = struct.Struct(">4sIIQI")
_CRC = struct.Struct(">I")
PREFIX_BYTES = _FIELDS.size + _CRC.size


@dataclass(frozen=True)
class Prefix:
    """What the fixed part of a frame declares; lengths in bytes."""

    sequence: int
    header_bytes: int
    payload_bytes: int
    header_crc: int


def encode(frame: Frame, sequence: int, payload_bytes: int = 0) -> bytes:
    """Prefix and header of a frame; its payload is sent after them."""
    header = CODEC.encode(frame)
    fields = _FIELDS.pack(MAGIC, sequence, len(header), payload_bytes, zlib.crc32(header))
    return fields + _CRC.pack(zlib.crc32(fields)) + header


def decode_prefix(prefix: bytes | bytearray) -> Prefix:
    """CorruptPieceError on damage, ProtocolError on what is no frame."""
    fields = prefix[: _FIELDS.size]
    if _CRC.unpack_from(prefix, _FIELDS.size) != (zlib.crc32(fields),):
        raise CorruptPieceError("a frame's prefix is damaged")
    magic, sequence, header_bytes, payload_bytes, header_crc = _FIELDS.unpack(fields)
    if magic != MAGIC:
        raise ProtocolError("the peer sends something other than frames")
    return Prefix(sequence, header_bytes, payload_bytes, header_crc)


def decode_header(prefix: Prefix, header: bytes | bytearray) -> Frame:
    """CorruptPieceError on damage, ProtocolError on a header that is none of ours."""
    if zlib.crc32(header) != prefix.header_crc:
        raise CorruptPieceError("a frame's header is damaged")
    frame: Frame = CODEC.decode(bytes(header))
    return frame


def check_card(card: bytes) -> None:
    """ProtocolError for one that is longer than any is."""
    if len(card) > MAX_CARD_BYTES:
        raise ProtocolError(f"a card of {len(card)} bytes is none of ours")


def pack_tags(tags: Tags) -> tuple[bytes, bytes]:
    """Columns of block ids and generations."""
    return pack_ids(tags.block_ids), pack_words(tags.generations)


def unpack_tags(block_ids: bytes, generations: bytes) -> Tags:
    """ProtocolError unless they are columns of one length."""
    try:
        ids = unpack_ids(block_ids)
        return Tags(ids, unpack_words(generations, len(ids)).reshape(len(ids)))
    except ValueError as error:
        raise ProtocolError(f"a frame's columns do not fit: {error}") from None


def unpack_give(frame: Give) -> tuple[list[int], GroupRange]:
    """Blocks and layer groups. ProtocolError unless its column fits."""
    try:
        blocks: list[int] = unpack_ids(frame.block_ids).tolist()
    except ValueError as error:
        raise ProtocolError(f"a frame's columns do not fit: {error}") from None
    return blocks, GroupRange(frame.first_group, frame.num_groups)


def unpack_digests(digests: bytes, num_blocks: int) -> Words:
    """[blocks, groups]. ProtocolError unless every block has as many."""
    try:
        return unpack_words(digests, num_blocks)
    except ValueError as error:
        raise ProtocolError(f"a frame's digests do not fit: {error}") from None


def unpack_publication(frame: Watermark) -> Publication:
    """ProtocolError unless its columns fit."""
    tags = unpack_tags(frame.block_ids, frame.generations)
    digests = unpack_digests(frame.digests, len(tags))
    groups = GroupRange(frame.first_group, digests.shape[1])
    return Publication(Part(frame.first_block, len(tags), groups), tags, digests)


def unpack_manifest(frame: Seal) -> tuple[Tags, Words]:
    """Tags and digests [blocks, groups]. ProtocolError unless its columns fit."""
    tags = unpack_tags(frame.block_ids, frame.generations)
    return tags, unpack_digests(frame.digests, len(tags))
