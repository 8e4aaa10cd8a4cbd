"""One message after another on a stream: each behind its length, 4 bytes, big-endian."""

import struct
from typing import BinaryIO

from shared.errors import ProtocolError

LENGTH = struct.Struct(">I")


def framed(body: bytes) -> bytes:
    """A message as it travels."""
    return LENGTH.pack(len(body)) + body


def next_body(buffer: bytearray, start: int, max_bytes: int | None = None) -> bytes | None:
    """The message whose frame begins at `start`, None until all of it is there. ProtocolError as
    soon as it says that it is longer than `max_bytes`."""
    begin = start + LENGTH.size
    if len(buffer) < begin:
        return None
    (length,) = LENGTH.unpack_from(buffer, start)
    if max_bytes is not None and length > max_bytes:
        raise ProtocolError(f"frame of {length} bytes is over the limit")
    end = begin + length
    return bytes(buffer[begin:end]) if len(buffer) >= end else None


def read_body(stream: BinaryIO) -> bytes | None:
    """Wait for the next message; None once the stream has ended."""
    prefix = stream.read(LENGTH.size)
    if len(prefix) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(prefix)
    return stream.read(length)
