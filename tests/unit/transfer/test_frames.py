"""Frames: every message survives the wire, every flipped bit is seen."""

import pytest

from shared.errors import CorruptPieceError, ProtocolError
from shared.kv.columns import pack_ids, pack_words
from shared.protocol import Attempt, TokenLogprobs, TokenRun
from shared.transfer import frames
from shared.transfer.blocks.manifest import Tags
from shared.transfer.frames import (
    PREFIX_BYTES,
    Blocks,
    End,
    Frame,
    Open,
    Opened,
    Pool,
    Read,
    Refused,
    Release,
    Renew,
    Renewed,
    Seal,
    ShortSeal,
    Verified,
    Verify,
    Watermark,
    decode_header,
    decode_prefix,
    encode,
    pack_tags,
    unpack_digests,
    unpack_tags,
)

RUN = TokenRun("rid", 2, 7, (5,), (TokenLogprobs(-0.5, (5, 6), (-0.5, -1.5)),))
FRAMES: list[Frame] = [
    Open(Attempt("rid", 2), "ticket", "p.1", "f" * 32),
    Opened(3333),
    Watermark(4, 1, pack_ids([1, 2]), pack_words([3, 4]), pack_words([2**64 - 1, 0])),
    Read(0, 9, 2, 3),
    Blocks(0, pack_ids([1]), pack_words([1])),
    Seal(pack_ids([1]), pack_words([1]), pack_words([1]), RUN),
    ShortSeal(3, RUN),
    End(),
    Verify(0, pack_ids([1]), pack_words([1])),
    Verified(True),
    Release(),
    Renew(),
    Renewed(),
    Refused("expired"),
    Pool(64, bytes(8)),
]


def decode(body: bytes) -> Frame:
    prefix = decode_prefix(body[:PREFIX_BYTES])
    return decode_header(prefix, body[PREFIX_BYTES:])


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_survives_the_wire(frame: Frame) -> None:
    assert decode(encode(frame, 3)) == frame


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_every_flipped_bit_is_seen(frame: Frame) -> None:
    body = bytearray(encode(frame, 3, payload_bytes=512))
    for bit in range(len(body) * 8):
        body[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptPieceError):
            decode(bytes(body))
        body[bit // 8] ^= 1 << bit % 8


def test_the_prefix_says_what_follows() -> None:
    prefix = decode_prefix(encode(Blocks(0, b"", b""), 77, payload_bytes=2**33)[:PREFIX_BYTES])
    assert (prefix.sequence, prefix.payload_bytes) == (77, 2**33)


def test_what_is_no_frame_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAGIC", b"HTTP")
    body = encode(Renew(), 0)
    monkeypatch.undo()
    with pytest.raises(ProtocolError, match="something other than frames"):
        decode(body)


def test_tags_and_digests_travel_as_columns() -> None:
    tags = Tags.of([0, 2**32 - 1], [7, 2**64 - 1])
    columns = pack_tags(tags)
    assert [len(column) for column in columns] == [8, 16]
    assert unpack_tags(*columns).equal(tags).all()
    assert len(unpack_tags(b"", b"")) == 0
    assert unpack_digests(pack_words([1, 2, 3, 4, 5, 6]), 2).tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize(
    ("block_ids", "generations"),
    [
        (b"123", b""),
        (b"1234", b"1234567"),
        (b"1234", bytes(16)),
        (bytes(8), bytes(8)),
        (b"", b"8 bytes."),
    ],
)
def test_columns_of_tags_that_do_not_fit_are_refused(block_ids: bytes, generations: bytes) -> None:
    with pytest.raises(ProtocolError, match="columns do not fit"):
        unpack_tags(block_ids, generations)


@pytest.mark.parametrize(
    ("digests", "num_blocks"), [(b"1234567", 1), (bytes(24), 2), (bytes(8), 0)]
)
def test_digests_that_do_not_fit_their_blocks_are_refused(digests: bytes, num_blocks: int) -> None:
    with pytest.raises(ProtocolError, match="digests do not fit"):
        unpack_digests(digests, num_blocks)
