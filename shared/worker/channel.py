"""What the io process and the engine of a worker say to each other over one socket pair.

io -> engine: commands, applied between steps. engine -> io: READY once, then one report per
step that changed anything. Token ids cross here, KV bytes never do: both processes map the
same KVMemory, whose file descriptor precedes the first frame, with that of a GPU's pool if other
workers are to map one.
"""

import os
import select
import socket
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from shared.codec import Codec
from shared.engine.scheduling.load import EngineLoad
from shared.engine.scheduling.sequence import SequenceSpec
from shared.errors import BatonError
from shared.frames import LENGTH, framed, next_body
from shared.kv.layout import KVLayout
from shared.kv.memory import Piece
from shared.kv.share import MAX_RANKS
from shared.message_parts.prompt_logprobs import PromptLogprobs
from shared.protocol import Attempt, TokenRun


@dataclass(frozen=True)
class Add:
    """Compute this sequence: prefill only, or all of it."""

    spec: SequenceSpec


@dataclass(frozen=True)
class Reserve:
    """Take all prompt blocks for a sequence whose KV will be pulled; answered in a report."""

    spec: SequenceSpec


@dataclass(frozen=True)
class Nearing:
    """The KV of a reserved sequence is nearly complete: token 1 is to be expected."""

    attempt: Attempt


@dataclass(frozen=True)
class Adopt:
    """The reserved blocks hold verified KV: decode on from token 1."""

    attempt: Attempt
    run: TokenRun


@dataclass(frozen=True)
class Release:
    """Decode has its copy: the sealed blocks are free."""

    attempt: Attempt


@dataclass(frozen=True)
class Abort:
    """Forget the attempt, whatever its state. Only sent once no pull touches its blocks."""

    attempt: Attempt


@dataclass(frozen=True)
class Beat:
    """Say that you live: any report answers it."""


@dataclass(frozen=True)
class Trace:
    """Leave a trace of the next steps: shared/engine/running/step_trace.py."""


@dataclass(frozen=True)
class Ready:
    """The engine loaded its model."""

    pid: int
    layout: KVLayout
    num_blocks: int
    arena_bytes: int | None
    """None: the blocks lie in host memory"""
    max_model_len: int
    vocab_size: int
    load: EngineLoad
    step_tokens: int
    """what one step may compute"""
    prefill_token_s: float = 0.0
    """seconds a prompt token took in a trial"""
    step_sequences: int = 0
    """that one step may decode"""


@dataclass(frozen=True)
class Refused:
    """A command the engine cannot obey; the attempt is not, or no longer, to be advanced."""

    attempt: Attempt
    message: str
    reason: Literal["", "too_long", "grammar", "no_room"] = ""
    """why no other attempt would do better: the sequence can never fit, nothing can match its
    grammar; or that it would have to wait for KV blocks here"""


@dataclass(frozen=True)
class Reserved:
    attempt: Attempt
    block_ids: tuple[int, ...]
    num_present_blocks: int
    """leading blocks that already hold this prompt's KV"""


@dataclass(frozen=True)
class Announced:
    """Blocks that the step of that number completes; without one, blocks that are complete."""

    attempt: Attempt
    piece: Piece
    step: int | None


@dataclass(frozen=True)
class Scheduled:
    """What a step's schedule alone decided; sent before the step computes anything, so that
    hand-overs overlap with it."""

    start_ns: int
    started: tuple[tuple[Attempt, int], ...] = ()
    """prompts whose first chunk is in this step, and the tokens the prefix cache gave"""
    reserved: tuple[Reserved, ...] = ()
    handed_back: tuple[Attempt, ...] = ()
    announced: tuple[Announced, ...] = ()
    alone: Attempt | None = None
    """the step computes this one and no other, as it must"""


@dataclass(frozen=True)
class StepReport:
    """What one step did; see StepOutput for the fields. Wall-clock ns."""

    start_ns: int
    end_ns: int
    load: EngineLoad
    chunks: tuple[tuple[Attempt, int], ...] = ()
    tokens: tuple[TokenRun, ...] = ()
    sealed: tuple[tuple[Attempt, TokenRun], ...] = ()
    ended: tuple[Attempt, ...] = ()
    finished: tuple[Attempt, ...] = ()
    stored: tuple[tuple[bytes, int], ...] = ()
    """(block hash, its depth) of blocks that joined the prefix cache"""
    removed: tuple[bytes, ...] = ()
    counters: dict[str, int] = field(default_factory=dict)
    """totals since the engine's start"""
    gauges: dict[str, float] | None = None
    """by metric name, about once a second; None: not now"""
    scored: tuple[tuple[Attempt, PromptLogprobs], ...] = ()
    alone: Attempt | None = None
    """whose step is in flight, where that computes no other, as it must"""


Command = Add | Reserve | Nearing | Adopt | Release | Abort | Beat | Trace
Event = Ready | Refused | Scheduled | StepReport
CHANNEL_CODEC = Codec((*typing.get_args(Command), *typing.get_args(Event)))

_HERE_IS_MEMORY = b"\0"
_FAILED = b"\1"


class CommandSource(Protocol):
    """The channel as the step loop sees it."""

    def send(self, event: Event) -> None:
        """Report to the io process."""

    def receive(self, limit_s: float | None = 0.0) -> list[Command]:
        """Commands that have arrived; waits for one so long, None: without limit. EOFError once
        the io process is gone."""


class EngineChannel:
    """The engine process's end: blocking when idle, polled between steps."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._buffer = bytearray()
        self._woken = os.eventfd(0, os.EFD_CLOEXEC)

    def wake(self) -> None:
        """Let a `receive` that waits, or the next one, return with nothing. From any thread."""
        os.eventfd_write(self._woken, 1)

    def pass_memory(self, fd: int, pools: Sequence[int] = ()) -> None:
        """Give the io process the file descriptors of the host-visible KV memory, and of each
        rank's pool that other workers map, if that is not there. They stay the caller's."""
        socket.send_fds(self._socket, [_HERE_IS_MEMORY], [fd, *pools])

    def pass_failure(self, text: str) -> None:
        """Instead of the memory: why there is none."""
        self._socket.sendall(_FAILED + text.encode())
        self._socket.close()

    def send(self, event: Event) -> None:
        self._socket.sendall(framed(CHANNEL_CODEC.encode(event)))

    def receive(self, limit_s: float | None = 0.0) -> list[Command]:
        """Commands that have arrived; waits so long for the first, or for `wake`. None: without
        limit. EOFError once the io process is gone.
        """
        sources: list[socket.socket | int] = [self._socket, self._woken]
        commands = self._split()
        while not commands:
            readable, _, _ = select.select(sources, [], [], limit_s)
            if self._woken in readable:
                os.eventfd_read(self._woken)
                limit_s = 0.0
            if self._socket not in readable:
                break
            received = self._socket.recv(2**20)
            if not received:
                raise EOFError("the io process closed the channel")
            self._buffer += received
            commands = self._split()
        return commands

    def _split(self) -> list[Command]:
        commands: list[Command] = []
        start = 0
        while (body := next_body(self._buffer, start)) is not None:
            commands.append(CHANNEL_CODEC.decode(body))
            start += LENGTH.size + len(body)
        del self._buffer[:start]
        return commands


def receive_memory(sock: socket.socket) -> tuple[int, list[int]]:
    """io's end of `pass_memory`: (memory, pools); blocks until the engine has loaded its model.

    BatonError with the engine's own words when it failed instead.
    """
    flag, fds, _, _ = socket.recv_fds(sock, 1, 1 + MAX_RANKS)
    if flag == _FAILED:
        with sock.makefile("rb") as words:
            raise BatonError(words.read().decode())
    if flag != _HERE_IS_MEMORY or not fds:
        raise BatonError("the engine process ended before it was ready; its log says why")
    return fds[0], fds[1:]
