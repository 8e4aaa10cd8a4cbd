"""Blocks over links: the mover's part of them, whichever end of a link it is.

    invite  accept  meet     two workers become a pair
    give                     blocks go out of our pool, as the other end asks for them
    probe  fetch             the other end gives, and blocks come into our pool
    leave                    the pair ends

What waits for the other end is done by a thread of the pair, one thing after the other, in rooms
of its own; the mover fills and empties those, and goes on with its other questions meanwhile. While
one room is sent or received the mover has the other.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from queue import SimpleQueue
from typing import NamedTuple

import torch

from shared.kv.columns import pack_words
from shared.kv.digest import digest_of
from shared.kv.probe import probe_bytes
from shared.mover.copies import Copies, CopyError, Mark
from shared.mover.links.link import End, Link, MakeLink
from shared.mover.messages import (
    LINK_BYTES,
    Accept,
    Done,
    Fetch,
    Give,
    Invite,
    Meet,
    Probe,
    Unmap,
    block_ids,
    group_range,
)

logger = logging.getLogger(__name__)

MAX_PAIRS = 8
"""each takes its rooms and NCCL's buffers of a GPU's memory"""
NUM_ROOMS = 2
POLL_S = 1e-4
"""between looks at pairs that wait for their other end"""
CLOSE_S = 1.0
ENDED = "the link is ended"


@dataclass(frozen=True)
class _Connect:
    """What the taking end begins with; nobody waits for it but what comes after."""

    card: bytes


class _Asked(NamedTuple):
    """Something for a pair to do."""

    what: _Connect | Meet | Give | Probe | Fetch
    after: Mark = None


class _UnderWay(NamedTuple):
    """Something that its thread is to do next, or does."""

    asked: _Asked
    rows: torch.Tensor
    """of a room, that are sent or filled"""


class _Ended(NamedTuple):
    """What a pair's thread did."""

    pair: str
    problem: str
    seconds: float


class _Pair:
    """One link, its thread, and what is asked of it."""

    def __init__(
        self, name: str, link: Link, rooms: Sequence[torch.Tensor], num_blocks: int
    ) -> None:
        """`num_blocks`: of the other end's pool, where that gives."""
        self.name = name
        self.link = link
        self.num_blocks = num_blocks
        self.rooms = cycle(rooms)
        """the one that is free longest comes next"""
        self.under_way: deque[_UnderWay] = deque()
        """at most one for each room, the oldest first"""
        self.waiting: deque[_Asked] = deque()
        self.problem = ""
        """why nothing is done any more"""
        self.unmaps: list[Unmap] = []
        """to be answered when the thread has ended"""
        self.jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.thread: threading.Thread


class Pairs:
    """Called by the mover's thread only."""

    def __init__(self, copies: Copies, make_link: MakeLink) -> None:
        """`copies`: of our pool."""
        self._copies = copies
        self._make_link = make_link
        self._pairs: dict[str, _Pair] = {}
        self._ended: SimpleQueue[_Ended] = SimpleQueue()

    @property
    def patience_s(self) -> float | None:
        """How long the mover may wait for its next question; None: without end."""
        busy = any(pair.under_way or pair.unmaps for pair in self._pairs.values())
        return POLL_S if busy else None

    def has(self, name: str) -> bool:
        return name in self._pairs

    def invite(self, question: Invite) -> Done:
        """CopyError if there can be no link."""
        pair = self._begin(question.peer, "gives", question.host)
        return Done(question.number, card=pair.link.card())

    def accept(self, question: Accept) -> Done:
        """CopyError if there can be no link."""
        pair = self._begin(question.source, "takes", question.host, question.num_blocks)
        card = pair.link.card()
        self._ask(pair, _Asked(_Connect(question.card)))
        return Done(question.number, card=card)

    def ask(self, pair: str, what: Meet | Give | Probe | Fetch, after: Mark = None) -> None:
        """Answered later. `after`: as `Copies.scatter` has it. CopyError if there is no such pair,
        or it does not work any more."""
        found = self._pairs.get(pair)
        if found is None or found.unmaps:
            raise CopyError(ENDED)
        if found.problem:
            raise CopyError(found.problem)
        self._ask(found, _Asked(what, after))

    def leave(self, question: Unmap) -> Iterator[Done]:
        """What the pair had to do is not done; that it has ended is said later."""
        pair = self._pairs[question.source]
        pair.unmaps.append(question)
        if len(pair.unmaps) > 1:
            return
        pair.link.abort()
        yield from self._give_up(pair, ENDED)
        pair.jobs.put(None)

    def ended(self) -> Iterator[Done]:
        """The answers to what has ended since the last call. A thread says what it did before it
        ends, so those that have ended are looked for first."""
        left = [pair for pair in self._pairs.values() if not pair.thread.is_alive()]
        while not self._ended.empty():
            ended = self._ended.get()
            yield from self._answers(self._pairs[ended.pair], ended)
        for pair in left:
            del self._pairs[pair.name]
            yield from (Done(unmap.number) for unmap in pair.unmaps)

    def close(self) -> None:
        for pair in self._pairs.values():
            pair.link.abort()
            pair.jobs.put(None)
        for pair in self._pairs.values():
            pair.thread.join(CLOSE_S)
        self._pairs.clear()

    def _begin(self, name: str, end: End, host: str, num_blocks: int = 0) -> _Pair:
        if self.has(name):
            raise CopyError("there is such a link already")
        if len(self._pairs) == MAX_PAIRS:
            raise CopyError(f"{MAX_PAIRS} workers are linked to this one, and no more can be")
        room_bytes = max(LINK_BYTES, self._copies.share.layout.block_bytes)
        rooms = [self._copies.new_room(room_bytes) for _ in range(NUM_ROOMS)]
        pair = _Pair(name, self._made(end, host, rooms[0].device), rooms, num_blocks)
        pair.thread = threading.Thread(
            target=_run, args=(pair, self._ended), name="kv-link", daemon=True
        )
        pair.thread.start()
        self._pairs[name] = pair
        return pair

    def _made(self, end: End, host: str, device: torch.device) -> Link:
        try:
            return self._make_link(end, host, device)
        except Exception as error:  # noqa: BLE001 (as in the thread: a library's, of the link)
            raise _as_copy_error(error) from None

    def _ask(self, pair: _Pair, asked: _Asked) -> None:
        pair.waiting.append(asked)
        self._start_next(pair)

    def _start_next(self, pair: _Pair) -> None:
        """As much as there are rooms for."""
        while pair.waiting and len(pair.under_way) < NUM_ROOMS:
            asked = pair.waiting.popleft()
            rows = self._rows(pair, next(pair.rooms), asked.what)
            pair.under_way.append(_UnderWay(asked, rows))
            match asked.what:
                case _Connect(card) | Meet(_, _, card):
                    pair.jobs.put(partial(pair.link.meet, card))
                case Give():
                    pair.jobs.put(partial(pair.link.send, rows))
                case Probe() | Fetch():
                    pair.jobs.put(partial(pair.link.receive, rows))

    def _rows(
        self, pair: _Pair, room: torch.Tensor, what: _Connect | Meet | Give | Probe | Fetch
    ) -> torch.Tensor:
        """The part of a room that is sent, which is filled now, or will be received."""
        match what:
            case Give() if blocks := block_ids(what):
                rows = room[: self._num_bytes(what)]
                self._copies.gather(blocks, group_range(what), rows)
                return rows
            case Give():
                return room[: self._copies.gather_probe(room)]
            case Fetch():
                return room[: self._num_bytes(what)]
            case Probe():
                block_bytes = self._copies.share.layout.block_bytes
                return room[: probe_bytes(pair.num_blocks * block_bytes)]
        return room[:0]

    def _num_bytes(self, question: Give | Fetch) -> int:
        return len(block_ids(question)) * self._copies.share.groups.num_bytes(group_range(question))

    def _answers(self, pair: _Pair, ended: _Ended) -> Iterator[Done]:
        (what, after), rows = pair.under_way.popleft()
        if ended.problem:
            yield from self._give_up(pair, ended.problem)
        if not isinstance(what, _Connect):
            yield self._answer(what, rows, after, ended)
        self._start_next(pair)

    def _answer(
        self, what: Meet | Give | Probe | Fetch, rows: torch.Tensor, after: Mark, ended: _Ended
    ) -> Done:
        if ended.problem:
            return Done(what.number, problem=ended.problem)
        if isinstance(what, Probe):
            digest = pack_words([digest_of(rows.cpu().numpy())])
            return Done(what.number, digest, len(rows), ended.seconds)
        if isinstance(what, Fetch):
            digests = self._copies.scatter(block_ids(what), group_range(what), rows, after)
            return Done(what.number, pack_words(digests))
        return Done(what.number)

    def _give_up(self, pair: _Pair, problem: str) -> Iterator[Done]:
        """What waits is not done, and nothing will be."""
        pair.problem = pair.problem or problem
        waiting, pair.waiting = pair.waiting, deque()
        for asked in waiting:
            if not isinstance(asked.what, _Connect):
                yield Done(asked.what.number, problem=pair.problem)


def _run(pair: _Pair, ended: "SimpleQueue[_Ended]") -> None:
    """A pair's thread. What fails once is not tried again."""
    problem = ""
    try:
        while (job := pair.jobs.get()) is not None:
            start_s = time.perf_counter()
            try:
                if not problem:
                    job()
            except Exception as error:  # noqa: BLE001 (whoever asked must hear of it)
                problem = str(_as_copy_error(error))
            ended.put(_Ended(pair.name, problem, time.perf_counter() - start_s))
    finally:
        pair.link.close()


def _as_copy_error(error: Exception) -> CopyError:
    """What a library of a link raises costs the link, not the mover."""
    if isinstance(error, CopyError):
        return error
    logger.error("a link failed", exc_info=error)
    return CopyError(f"{type(error).__name__}: {error}")
