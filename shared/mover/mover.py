"""The mover: threads of the engine process that do with blocks what the io process asks.

    io process --(data socket)--> mover: Map Unmap Probe Fetch Stage Fill, in order --> Done
                                         Watch Expect GiveUp Show Join Invite Accept Meet Give
                                         Digest, in order, in a thread of its own

A digest of what a step writes waits for that step, and the copies of other hand-overs must not
wait with it. Bytes come from other hosts, and go there, while other questions are answered
(`remote_reads`, `links.pairs`). The step loop does not copy, and is only woken where it may begin
with what was copied. The socket keeps packets apart and brings descriptors; its end is the io
process's end.
"""

import logging
import os
import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from queue import SimpleQueue
from typing import NamedTuple, Protocol

from shared.kv.columns import Words, pack_words, unpack_ids
from shared.kv.layer_groups import GroupRange
from shared.mover.agent import MakeAgent, NixlAgent
from shared.mover.copies import Copies, CopyError, Mark
from shared.mover.first_tokens import FirstTokens
from shared.mover.links.link import MakeLink
from shared.mover.links.make import make_link
from shared.mover.links.pairs import Pairs
from shared.mover.messages import (
    CODEC,
    MAX_DESCRIPTORS,
    MAX_PACKET_BYTES,
    Accept,
    Digest,
    Done,
    Expect,
    Fetch,
    Fill,
    Give,
    GiveUp,
    Invite,
    Join,
    Map,
    Meet,
    Probe,
    Question,
    Show,
    Stage,
    Unmap,
    Watch,
    block_ids,
    group_range,
)
from shared.mover.remote_reads import RemoteReads
from shared.protocol import Attempt

logger = logging.getLogger(__name__)


class Marks(Protocol):
    """When the device is done with the steps that write the pool, for `Copies`."""

    def of_step(self, step: int, group: int) -> Mark:
        """What the step writes of the layer groups up to this one. Waits until the device has been
        told to; where it has no queue, until it has done so."""

    def num_written(self, step: int, groups: GroupRange) -> int:
        """The first of these layer groups that the step has written already."""

    def of_attempt(self, attempt: Attempt) -> Mark:
        """The steps that may still write the attempt's blocks."""


class Outside(NamedTuple):
    """How pools of other hosts are read; nothing of it is made before one is."""

    make_agent: MakeAgent = NixlAgent
    make_link: MakeLink = make_link


class NoMarks:
    """Of a pool that only the mover writes."""

    def of_step(self, step: int, group: int) -> Mark:
        return None

    def num_written(self, step: int, groups: GroupRange) -> int:
        return groups.num

    def of_attempt(self, attempt: Attempt) -> Mark:
        return None


class Mover:
    """Answers the questions of one data socket until it closes."""

    def __init__(
        self,
        sock: socket.socket,
        copies: Copies,
        digests: Copies,
        marks: Marks | None = None,
        first_tokens: FirstTokens | None = None,
        on_failure: Callable[[], None] = lambda: os._exit(1),
        outside: Outside | None = None,
    ) -> None:
        """`digests`: another one of the same pool, for the thread that digests. `marks`: default:
        only these threads write the pool. `first_tokens`: where the step loop looks for them;
        default: it does not. `on_failure`: the device did something that no question explains;
        nothing it holds can be trusted. `outside`: default: by nixl, NCCL and gloo."""
        self._socket = sock
        self._copies = copies
        self._digests = digests
        self._marks = marks or NoMarks()
        self._first_tokens = first_tokens or FirstTokens(lambda: None)
        self._on_failure = on_failure
        outside = outside or Outside()
        self._remote = RemoteReads(copies, outside.make_agent)
        self._pairs = Pairs(copies, outside.make_link)
        self._to_digest: SimpleQueue[Digest | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, args=(turn, end), name=name, daemon=True)
            for name, turn, end in (
                ("kv-mover", self._turn, self._end),
                ("kv-digests", self._digest_next, self._digests.close),
            )
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self, limit_s: float) -> None:
        """Wait for the end that the closed socket brings."""
        for thread in self._threads:
            thread.join(limit_s)

    def _run(self, turn: Callable[[], bool], end: Callable[[], None]) -> None:
        try:
            while turn():
                pass
        except OSError:
            pass  # the io process is gone
        except Exception:
            logger.exception("the mover failed")
            self._on_failure()
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # the other thread ends too
        finally:
            end()

    def _end(self) -> None:
        self._to_digest.put(None)
        self._remote.close()
        self._pairs.close()
        self._first_tokens.close()
        self._copies.close()
        self._socket.close()

    def _turn(self) -> bool:
        """Whether there may be another question."""
        for done in chain(self._remote.ended(), self._pairs.ended()):
            self._socket.sendall(CODEC.encode(done))
        patience_s = min(self._patiences_s(), default=None)
        if patience_s is not None and not select.select([self._socket], [], [], patience_s)[0]:
            return True
        packet, descriptors, _, _ = socket.recv_fds(
            self._socket, MAX_PACKET_BYTES, MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
        )
        if not packet:
            return False
        question: Question = CODEC.decode(packet)
        if isinstance(question, Digest):
            self._to_digest.put(question)
        else:
            self._answer(question, descriptors)
        return True

    def _patiences_s(self) -> list[float]:
        """How long the next question may keep what is under way waiting."""
        both = (self._remote.patience_s, self._pairs.patience_s)
        return [patience_s for patience_s in both if patience_s is not None]

    def _digest_next(self) -> bool:
        question = self._to_digest.get()
        if question is None:
            return False
        self._answer(question, [])
        return True

    def _answer(self, question: Question, descriptors: list[int]) -> None:
        try:
            done = self._done(question, descriptors)
        except CopyError as error:
            done = Done(question.number, problem=str(error))
        if done is not None:
            self._socket.sendall(CODEC.encode(done))

    def _done(self, question: Question, descriptors: list[int]) -> Done | None:
        """None: it comes once what was begun, or is under way, has ended."""
        match question:
            case Show() | Join():
                return self._join(question)
            case Invite() | Accept() | Meet() | Give():
                return self._link(question)
            case Unmap() | Probe() | Fetch() if self._remote.has(question.source):
                return self._from_joined(question)
            case Unmap() | Probe() | Fetch() if self._pairs.has(question.source):
                self._from_linked(question)
                return None
            case Probe():
                return self._probe(question)
        digests = self._do(question, descriptors)
        return Done(question.number, b"" if digests is None else pack_words(digests))

    def _join(self, question: Show | Join) -> Done:
        match question:
            case Show():
                return self._remote.show(question)
            case Join():
                return self._remote.join(question)

    def _from_joined(self, question: Unmap | Probe | Fetch) -> Done | None:
        match question:
            case Unmap():
                return self._remote.leave(question)
            case Probe():
                self._remote.probe(question)
            case Fetch():
                self._remote.fetch(question, self._marks.of_attempt(question.attempt))
        return None

    def _link(self, question: Invite | Accept | Meet | Give) -> Done | None:
        match question:
            case Invite():
                return self._pairs.invite(question)
            case Accept():
                return self._pairs.accept(question)
            case Meet() | Give():
                self._pairs.ask(question.peer, question)
        return None

    def _from_linked(self, question: Unmap | Probe | Fetch) -> None:
        match question:
            case Unmap():
                for done in self._pairs.leave(question):
                    self._socket.sendall(CODEC.encode(done))
            case Probe():
                self._pairs.ask(question.source, question)
            case Fetch():
                after = self._marks.of_attempt(question.attempt)
                self._pairs.ask(question.source, question, after)

    def _probe(self, question: Probe) -> Done:
        digest, num_bytes, seconds = self._copies.probe(question.source)
        return Done(question.number, pack_words([digest]), num_bytes, seconds)

    def _do(self, question: Question, descriptors: list[int]) -> Words | None:
        match question:
            case Map(_, source, num_blocks):
                self._copies.map(source, num_blocks, descriptors)
            case Watch() | Expect() | GiveUp():
                self._look(question, descriptors)
            case Unmap(_, source):
                self._first_tokens.unmap(source)
                self._copies.unmap(source)
            case Fetch():
                return self._fetch(question)
            case Digest():
                groups, mark = self._written(question)
                return self._digests.digests(block_ids(question), groups, mark)
            case Stage():
                self._copies.stage(block_ids(question), group_range(question), question.offset)
            case Fill():
                mark = self._marks.of_attempt(question.attempt)
                return self._copies.fill(
                    block_ids(question), group_range(question), question.offset, mark
                )
        return None

    def _look(self, question: Watch | Expect | GiveUp, descriptors: list[int]) -> None:
        """For first tokens."""
        match question:
            case Watch(_, source, num_blocks):
                self._first_tokens.map(source, num_blocks, descriptors[0])
            case Expect(_, attempt, source, token_1):
                self._first_tokens.expect(attempt, source, *token_1)
            case GiveUp(_, attempt):
                self._first_tokens.give_up(attempt)

    def _fetch(self, question: Fetch) -> Words:
        attempt, source = question.attempt, question.source
        source_blocks, blocks = unpack_ids(question.source_blocks).tolist(), block_ids(question)
        mark = self._marks.of_attempt(attempt)
        digests = self._copies.fetch(source, source_blocks, blocks, group_range(question), mark)
        if question.token_1 is not None and pack_words(digests) == question.digests:
            self._first_tokens.expect(attempt, source, *question.token_1)
        return digests

    def _written(self, question: Digest) -> tuple[GroupRange, Mark]:
        """The groups to digest now, and what comes first: all that the step has written of those
        asked for, so that what is late catches up; the first one if it has written none."""
        groups = group_range(question)
        if question.step is None:
            return groups, None
        number = self._marks.num_written(question.step, groups)
        if number:
            return GroupRange(groups.first, number), None
        return GroupRange(groups.first, 1), self._marks.of_step(question.step, groups.first)
