"""The process that reads large request bodies, so that the gateway's loop never waits for one.

Frames on stdin and stdout: a 4-byte big-endian length and a message of `TEXT_CODEC`. The first
frame says what to load. Ends with its parent, or when the parent kills it over a body that
takes too long.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from services.gateway.prompt.prompt_reader import (
    PlainText,
    PreparedRequest,
    PromptReader,
    TokenList,
)
from services.gateway.prompt.served_model import ServedModel
from shared.codec import Codec
from shared.errors import RequestError
from shared.process import die_with_parent

LENGTH_BYTES = 4
Kind = Literal["chat", "text", "tokenize", "detokenize"]


@dataclass(frozen=True)
class Setup:
    """First frame: everything a PromptReader is made of."""

    directory: str
    model: ServedModel
    hash_root: bytes
    block_size: int
    parent_pid: int


@dataclass(frozen=True)
class Job:
    """One request body to read."""

    kind: Kind
    body: bytes
    max_model_len: int
    """longest sequence that the workers hold"""


@dataclass(frozen=True)
class Refusal:
    """A RequestError on its way back."""

    message: str
    status: int
    code: str | None
    param: str | None
    kind: str

    def error(self) -> RequestError:
        return RequestError(
            self.message, status=self.status, code=self.code, param=self.param, kind=self.kind
        )


Answer = PreparedRequest | TokenList | PlainText
TEXT_CODEC = Codec((Setup, Job, Refusal, PreparedRequest, TokenList, PlainText))


def read_body(reader: PromptReader, job: Job) -> Answer:
    """The work itself, wherever it runs."""
    if job.kind == "tokenize":
        return reader.tokenize(job.body)
    if job.kind == "detokenize":
        return reader.detokenize(job.body)
    return reader.limited(job.max_model_len).prepare(job.kind, job.body)


def serve(incoming: BinaryIO, outgoing: BinaryIO) -> None:
    """Answer jobs until the pipe closes."""
    setup = _next(incoming)
    if not isinstance(setup, Setup):
        return
    die_with_parent(setup.parent_pid)
    reader = PromptReader.load(
        Path(setup.directory), setup.model, setup.hash_root, setup.block_size
    )
    while isinstance(job := _next(incoming), Job):
        try:
            answer: object = read_body(reader, job)
        except RequestError as error:
            answer = Refusal(error.message, error.status, error.code, error.param, error.kind)
        frame = TEXT_CODEC.encode(answer)
        outgoing.write(len(frame).to_bytes(LENGTH_BYTES, "big") + frame)
        outgoing.flush()


def _next(incoming: BinaryIO) -> object:
    size = incoming.read(LENGTH_BYTES)
    if len(size) < LENGTH_BYTES:
        return None
    frame = incoming.read(int.from_bytes(size, "big"))
    return TEXT_CODEC.decode(frame)


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
