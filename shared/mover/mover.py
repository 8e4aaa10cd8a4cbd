"""The mover: a thread of the engine process that copies blocks in the order the io process asks.

    io process --(data socket)--> mover: Map Unmap Probe Fetch Digest Stage Fill --> Done

The step loop neither copies nor is woken by copies. The socket keeps packets apart and brings
descriptors; its end is the io process's end.
"""

import logging
import os
import socket
import threading
from collections.abc import Callable
from typing import Protocol

from shared.kv.columns import Words, pack_words, unpack_ids
from shared.kv.layer_groups import GroupRange
from shared.mover.copies import Copies, CopyError, Mark
from shared.mover.messages import (
    CODEC,
    MAX_DESCRIPTORS,
    MAX_PACKET_BYTES,
    Digest,
    Done,
    Fetch,
    Fill,
    Map,
    Probe,
    Question,
    Stage,
    Unmap,
)
from shared.protocol import Attempt

logger = logging.getLogger(__name__)


class Marks(Protocol):
    """When the device is done with the steps that write the pool, for `Copies`."""

    def of_step(self, step: int, group: int) -> Mark:
        """What the step writes of the layer groups up to this one. Waits until the device has been
        told to; where it has no queue, until it has done so."""

    def of_attempt(self, attempt: Attempt) -> Mark:
        """The steps that may still write the attempt's blocks."""


class NoMarks:
    """Of a pool that only the mover writes."""

    def of_step(self, step: int, group: int) -> Mark:
        return None

    def of_attempt(self, attempt: Attempt) -> Mark:
        return None


class Mover:
    """Answers the questions of one data socket until it closes."""

    def __init__(
        self,
        sock: socket.socket,
        copies: Copies,
        marks: Marks | None = None,
        on_failure: Callable[[], None] = lambda: os._exit(1),
    ) -> None:
        """`marks`: default: only this thread writes the pool. `on_failure`: the device did
        something that no question explains; nothing it holds can be trusted."""
        self._socket = sock
        self._copies = copies
        self._marks = marks or NoMarks()
        self._on_failure = on_failure
        self._thread = threading.Thread(target=self._run, name="kv-mover", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, limit_s: float) -> None:
        """Wait for the end that the closed socket brings."""
        self._thread.join(limit_s)

    def _run(self) -> None:
        try:
            while self._answer_next():
                pass
        except OSError:
            pass  # the io process is gone
        except Exception:
            logger.exception("the mover failed")
            self._on_failure()
        finally:
            self._copies.close()
            self._socket.close()

    def _answer_next(self) -> bool:
        packet, descriptors, _, _ = socket.recv_fds(
            self._socket, MAX_PACKET_BYTES, MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
        )
        if not packet:
            return False
        question: Question = CODEC.decode(packet)
        try:
            if isinstance(question, Probe):
                done = self._probe(question)
            else:
                digests = self._do(question, descriptors)
                done = Done(question.number, b"" if digests is None else pack_words(digests))
        except CopyError as error:
            done = Done(question.number, problem=str(error))
        self._socket.sendall(CODEC.encode(done))
        return True

    def _probe(self, question: Probe) -> Done:
        digest, num_bytes, seconds = self._copies.probe(question.source)
        return Done(question.number, pack_words([digest]), num_bytes, seconds)

    def _do(self, question: Question, descriptors: list[int]) -> Words | None:
        match question:
            case Map(_, source, num_blocks):
                self._copies.map(source, num_blocks, descriptors)
            case Unmap(_, source):
                self._copies.unmap(source)
            case Fetch():
                source_blocks, blocks = unpack_ids(question.source_blocks), _ids(question)
                mark = self._marks.of_attempt(question.attempt)
                return self._copies.fetch(
                    question.source, source_blocks.tolist(), blocks, _groups(question), mark
                )
            case Digest():
                groups, mark = _groups(question), None
                if question.step is not None:
                    mark = self._marks.of_step(question.step, groups.end - 1)
                return self._copies.digests(_ids(question), groups, mark)
            case Stage():
                self._copies.stage(_ids(question), _groups(question), question.offset)
            case Fill():
                mark = self._marks.of_attempt(question.attempt)
                return self._copies.fill(_ids(question), _groups(question), question.offset, mark)
        return None


def _ids(question: Fetch | Digest | Stage | Fill) -> list[int]:
    """The blocks of our own pool."""
    blocks: list[int] = unpack_ids(question.blocks).tolist()
    return blocks


def _groups(question: Fetch | Digest | Stage | Fill) -> GroupRange:
    return GroupRange(question.first_group, question.num_groups)
