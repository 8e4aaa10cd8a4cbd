"""Frames behind a length: cut anywhere they come out whole, and none is longer than allowed."""

import io

import pytest

from shared.errors import ProtocolError
from shared.frames import LENGTH, framed, next_body, read_body

BODIES = (b"one", b"", b"three")
STREAM = b"".join(map(framed, BODIES))


def test_a_frame_is_there_when_all_of_it_is() -> None:
    for num_bytes in range(len(STREAM) + 1):
        buffer, start, found = bytearray(STREAM[:num_bytes]), 0, []
        while (body := next_body(buffer, start)) is not None:
            found.append(body)
            start += LENGTH.size + len(body)
        whole = [len(b"".join(map(framed, BODIES[:count]))) <= num_bytes for count in (1, 2, 3)]
        assert tuple(found) == BODIES[: sum(whole)]


def test_a_frame_that_would_be_too_long_is_refused_before_it_is_there() -> None:
    assert next_body(bytearray(framed(b"1234")), 0, 4) == b"1234"
    with pytest.raises(ProtocolError, match="5 bytes is over the limit"):
        next_body(bytearray(LENGTH.pack(5)), 0, 4)


def test_a_stream_is_read_to_its_end() -> None:
    stream = io.BytesIO(STREAM + b"\0\0")
    assert [read_body(stream) for _ in range(4)] == [*BODIES, None]
