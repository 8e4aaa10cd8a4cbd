"""The mover: a thread of the engine process that copies blocks in the order the io process asks.

    io process --(data socket)--> mover: Map Unmap Fetch Digest --> Done

The step loop neither copies nor is woken by copies. The socket keeps packets apart and brings
descriptors; its end is the io process's end.
"""

import logging
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

from shared.mover.copies import Copies, CopyError
from shared.mover.messages import (
    CODEC,
    MAX_DESCRIPTORS,
    MAX_PACKET_BYTES,
    Digest,
    Done,
    Fetch,
    Map,
    Question,
    Unmap,
    pack_digests,
    unpack_ids,
)
from shared.protocol import Attempt

logger = logging.getLogger(__name__)


def no_mark(_: Attempt) -> None:
    """For a pool that only this thread writes."""


class Mover:
    """Answers the questions of one data socket until it closes."""

    def __init__(
        self,
        sock: socket.socket,
        copies: Copies,
        mark_of: Callable[[Attempt], Any] = no_mark,
        on_failure: Callable[[], None] = lambda: os._exit(1),
    ) -> None:
        """`mark_of`: the steps that may still write an attempt's blocks. `on_failure`: the device
        did something that no question explains; nothing it holds can be trusted."""
        self._socket = sock
        self._copies = copies
        self._mark_of = mark_of
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
            digests = self._do(question, descriptors)
            done = Done(question.number, pack_digests(digests))
        except CopyError as error:
            done = Done(question.number, problem=str(error))
        self._socket.sendall(CODEC.encode(done))
        return True

    def _do(self, question: Question, descriptors: list[int]) -> tuple[int, ...]:
        match question:
            case Map(_, source, num_blocks):
                self._copies.map(source, num_blocks, descriptors)
            case Unmap(_, source):
                self._copies.unmap(source)
            case Fetch(_, attempt, source, source_blocks, blocks):
                mark = self._mark_of(attempt)
                return self._copies.fetch(
                    source, unpack_ids(source_blocks), unpack_ids(blocks), mark
                )
            case Digest(_, blocks):
                return self._copies.digests(unpack_ids(blocks))
        return ()
