"""Reads of pools that other workers show through their agents.

The mover begins them and looks at them between its other questions, so a slow source keeps nobody
else waiting. A question is answered once its reads have ended, for nothing else stops a read: to
forget a source, too, waits for them.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from shared.kv.columns import pack_words, unpack_ids
from shared.kv.layer_groups import GroupRange
from shared.kv.probe import probe_bytes
from shared.mover.agent import Agent, MakeAgent, Read
from shared.mover.copies import Copies, CopyError, Mark, Regions
from shared.mover.messages import (
    Done,
    Fetch,
    Join,
    Probe,
    Show,
    Unmap,
    block_ids,
    group_range,
)
from shared.mover.runs import joined

POLL_S = 1e-4
"""between looks at reads that are under way"""
PROGRESS_S = 5e-3
"""between looks at readers that connect; a source is read without its help from then on"""
LIMIT_S = 20.0
"""for one read. One that takes longer is stopped, and with it all others and the agent: a source
that neither answers nor ends must not hold blocks for good"""
PROBE_LIMIT_S = 5.0
"""for a probe: a pull that may go another way waits for it"""


class _Ours(NamedTuple):
    """Made when it is first needed: workers of one host never pay for it."""

    regions: Regions
    agent: Agent

    @property
    def block_bytes(self) -> int:
        return self.regions.groups.num_bytes(self.regions.groups.all)


@dataclass(frozen=True)
class _UnderWay:
    question: Fetch | Probe
    handle: Any
    num_bytes: int
    start_s: float

    @property
    def is_overdue(self) -> bool:
        limit_s = PROBE_LIMIT_S if isinstance(self.question, Probe) else LIMIT_S
        return time.monotonic() - self.start_s > limit_s


@dataclass
class _Source:
    num_blocks: int
    is_broken: bool = False
    """nothing is read from it any more"""
    unmap: Unmap | None = None
    """to be answered when its last read has ended"""


class RemoteReads:
    """Called by the mover's thread only."""

    def __init__(self, copies: Copies, make_agent: MakeAgent) -> None:
        """`copies`: of the pool that is shown and read into."""
        self._copies = copies
        self._make_agent = make_agent
        self._ours: _Ours | None = None
        self._sources: dict[str, _Source] = {}
        self._under_way: list[_UnderWay] = []

    @property
    def patience_s(self) -> float | None:
        """How long the mover may wait for its next question; None: without end."""
        if self._ours is None:
            return None
        return POLL_S if self._under_way else PROGRESS_S

    def has(self, source: str) -> bool:
        return source in self._sources

    def show(self, question: Show) -> Done:
        """CopyError if our pool cannot be read by others."""
        return Done(question.number, card=self._made(question.name).agent.card())

    def join(self, question: Join) -> Done:
        """CopyError if the source cannot be joined."""
        ours, source = self._made(question.name), question.source
        if self.has(source):
            raise CopyError("the source is joined already")
        num_bytes = question.num_blocks * ours.block_bytes
        ours.agent.join(source, question.card, num_bytes + probe_bytes(num_bytes))
        self._sources[source] = _Source(question.num_blocks)
        return Done(question.number)

    def leave(self, question: Unmap) -> Done | None:
        """None: answered later."""
        source = self._sources[question.source]
        source.unmap, source.is_broken = question, True
        return next(self._left(question.source), None)

    def probe(self, question: Probe) -> None:
        """Answered later. CopyError if it cannot be begun."""
        ours, source = self._standing(question.source)
        num_bytes = source.num_blocks * ours.block_bytes
        room = ours.regions.probe_room.address
        self._begin(question, [Read(num_bytes, room, probe_bytes(num_bytes))])

    def fetch(self, question: Fetch, after: Mark) -> None:
        """Behind the work of `after`; answered later. CopyError if it cannot be begun."""
        ours, source = self._standing(question.source)
        theirs = unpack_ids(question.source_blocks).tolist()
        if theirs and max(theirs) >= source.num_blocks:
            raise CopyError("the source names a block that its pool does not have")
        self._copies.wait(after)
        blocks = block_ids(question)
        self._begin(question, _reads(ours, theirs, blocks, group_range(question)))

    def ended(self) -> Iterator[Done]:
        """The answers to what has ended since the last call."""
        if self._ours is None:
            return
        if not self._under_way:
            self._ours.agent.progress()
        yield from self._answers(self._ours)
        if any(read.is_overdue for read in self._under_way):
            yield from self._stop()

    def close(self) -> None:
        """Nothing touches our pool any more."""
        self._under_way.clear()
        self._sources.clear()
        ours, self._ours = self._ours, None
        if ours is not None:
            ours.agent.close()

    def _made(self, name: str) -> _Ours:
        if self._ours is None:
            regions = self._copies.regions()
            self._ours = _Ours(regions, self._make_agent(name, regions))
        return self._ours

    def _standing(self, source: str) -> tuple[_Ours, _Source]:
        found = self._sources[source]
        if found.is_broken or self._ours is None:
            raise CopyError("the source cannot be read any more")
        return self._ours, found

    def _begin(self, question: Fetch | Probe, reads: Sequence[Read]) -> None:
        ours, source = self._standing(question.source)
        start_s = time.monotonic()
        try:
            handle = ours.agent.begin(question.source, reads)
        except CopyError:
            source.is_broken = True
            raise
        num_bytes = sum(read.num_bytes for read in reads)
        self._under_way.append(_UnderWay(question, handle, num_bytes, start_s))

    def _answers(self, ours: _Ours) -> Iterator[Done]:
        for read in list(self._under_way):
            done = self._answer(ours, read)
            if done is not None:
                self._under_way.remove(read)
                yield done
                yield from self._left(read.question.source)

    def _answer(self, ours: _Ours, read: _UnderWay) -> Done | None:
        """None: it has not ended."""
        question = read.question
        try:
            if not ours.agent.is_done(read.handle):
                return None
        except CopyError as error:
            self._sources[question.source].is_broken = True
            return Done(question.number, problem=str(error))
        if isinstance(question, Probe):
            seconds = time.monotonic() - read.start_s
            digest = pack_words([self._copies.read_digest(read.num_bytes)])
            return Done(question.number, digest, read.num_bytes, seconds)
        blocks = block_ids(question)
        digests = self._copies.digests(blocks, group_range(question), None)
        return Done(question.number, pack_words(digests))

    def _left(self, name: str) -> Iterator[Done]:
        """The source is forgotten, if that was asked for and nothing is read from it any more."""
        source = self._sources[name]
        if source.unmap is None or any(read.question.source == name for read in self._under_way):
            return
        del self._sources[name]
        if self._ours is not None:
            with suppress(CopyError):  # then it has forgotten the source by itself
                self._ours.agent.leave(name)
        yield Done(source.unmap.number)

    def _stop(self) -> Iterator[Done]:
        """Our agent goes, and with it all that is under way: nobody may hold a handle any more."""
        reads = [read.question.number for read in self._under_way]
        unmaps = [source.unmap.number for source in self._sources.values() if source.unmap]
        self.close()
        for number in reads:
            yield Done(number, problem="reads were stopped: one did not end")
        for number in unmaps:
            yield Done(number)


def _reads(
    ours: _Ours, source_blocks: Sequence[int], blocks: Sequence[int], groups: GroupRange
) -> list[Read]:
    """Neighbours joined where whole blocks are read."""
    base, size, span = ours.regions.pool.address, ours.block_bytes, ours.regions.groups.span(groups)
    if span == slice(0, size):
        return [
            Read(run.source_block * size, base + run.block * size, run.num_blocks * size)
            for run in joined(source_blocks, blocks).each()
        ]
    return [
        Read(theirs * size + span.start, base + block * size + span.start, span.stop - span.start)
        for theirs, block in zip(source_blocks, blocks, strict=True)
    ]
