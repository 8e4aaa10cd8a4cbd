"""Frames: every message survives the wire, every flipped bit is seen."""

import pytest

from shared.errors import CorruptPieceError, ProtocolError
from shared.protocol import Attempt, TokenLogprobs, TokenRun
from shared.transfer import frames
from shared.transfer.frames import (
    PREFIX_BYTES,
    Blocks,
    End,
    Frame,
    Open,
    Opened,
    Read,
    Refused,
    Release,
    Renew,
    Renewed,
    Seal,
    Verified,
    Verify,
    Watermark,
    decode_header,
    decode_prefix,
    encode,
    pack_ids,
    pack_words,
    unpack_ids,
    unpack_words,
)

RUN = TokenRun("rid", 2, 7, (5,), (TokenLogprobs(-0.5, (5, 6), (-0.5, -1.5)),))
FRAMES: list[Frame] = [
    Open(Attempt("rid", 2), "ticket", "p.1", "f" * 32),
    Opened(3333),
    Watermark(4, pack_ids([1, 2]), pack_words([3, 4]), pack_words([2**64 - 1, 0])),
    Read(0, 9),
    Blocks(0, pack_ids([1]), pack_words([1])),
    Seal(pack_ids([1]), pack_words([1]), pack_words([1]), RUN),
    End(),
    Verify(0, pack_ids([1]), pack_words([1])),
    Verified(True),
    Release(),
    Renew(),
    Renewed(),
    Refused("expired"),
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


def test_another_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "VERSION", 9)
    body = encode(Renew(), 0)
    monkeypatch.undo()
    with pytest.raises(ProtocolError, match="version 9"):
        decode(body)


def test_columns_have_one_length_whatever_their_values() -> None:
    assert len(pack_ids([0, 2**32 - 1])) == 8
    assert len(pack_words([0, 2**64 - 1])) == 16
    assert unpack_ids(pack_ids([0, 2**32 - 1])) == (0, 2**32 - 1)
    assert unpack_words(pack_words([0, 2**64 - 1]), 2) == (0, 2**64 - 1)
    with pytest.raises(ProtocolError):
        unpack_ids(b"123")
    with pytest.raises(ProtocolError):
        unpack_words(b"12345678", 2)
