"""The child's end: whoever asks, on stdin and stdout."""

import sys
from typing import BinaryIO

from shared.codec import Codec
from shared.frames import framed, read_body
from shared.process import die_with_parent


class Asker:
    """The process that started this one."""

    def __init__(self, codec: Codec, incoming: BinaryIO, outgoing: BinaryIO) -> None:
        self._codec = codec
        self._incoming = incoming
        self._outgoing = outgoing

    @classmethod
    def parent(cls, codec: Codec) -> "Asker":
        """For a program that an AskedProcess runs: from now on it ends with its parent."""
        die_with_parent(int(sys.argv[1]))
        return cls(codec, sys.stdin.buffer, sys.stdout.buffer)

    def next(self) -> object:
        """Wait for the next message; None once no more can come."""
        body = read_body(self._incoming)
        return None if body is None else self._codec.decode(body)

    def answer(self, message: object) -> None:
        self._outgoing.write(framed(self._codec.encode(message)))
        self._outgoing.flush()
