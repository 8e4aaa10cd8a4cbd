"""Reads of pools that other workers show through their agents.

The mover begins them and looks at them between its other questions, so a slow source keeps nobody
else waiting. A question is answered once its reads have ended, for nothing else stops a read: to
forget a source, too, waits for them.
"""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shared.kv.columns import pack_words, unpack_ids
from shared.kv.probe import MAX_PROBE_BYTES, Probed, in_all, probe_bytes
from shared.mover.agent import Agent, MakeAgent, pack_cards, unpack_cards
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
from shared.mover.reads import Holding, Reads, holdings, read_at, reads_of

POLL_S = 1e-4
"""between looks at reads that are under way"""
PROGRESS_S = 5e-3
"""between looks at readers that connect; a source is read without its help from then on"""
MAX_READS = 2048
"""begun at a time: each takes the mover's thread some microseconds"""
MAX_POOL_BYTES = 2**50
LIMIT_S = 20.0
"""for one read. One that takes longer is stopped, and with it all others and the agent: a source
that neither answers nor ends must not hold blocks for good"""
PROBE_LIMIT_S = 5.0
"""for a probe: a pull that may go another way waits for it"""


class _Ours(NamedTuple):
    """Made when it is first needed: workers of one host never pay for it."""

    regions: Regions
    agent: Agent


class _Part(NamedTuple):
    """One of a source's ranks that has heads for us."""

    name: str
    """as our agent knows it"""
    holding: Holding


@dataclass
class _UnderWay:
    question: Fetch | Probe
    start_s: float
    left: deque[tuple[str, Reads]]
    """what has not begun: whose pool, as our agent knows it, and which bytes"""
    handles: list[Any] = field(default_factory=list)
    """of what has not ended"""
    problem: str = ""

    @property
    def is_overdue(self) -> bool:
        limit_s = PROBE_LIMIT_S if isinstance(self.question, Probe) else LIMIT_S
        return time.monotonic() - self.start_s > limit_s

    def begin_some(self, agent: Agent) -> None:
        """If that fails nothing more is."""
        num = 0
        while self.left and (not num or num + len(self.left[0][1].nums) <= MAX_READS):
            name, reads = self.left.popleft()
            num += len(reads.nums)
            try:
                self.handles.append(agent.begin(name, reads))
            except CopyError as error:
                self._fail(error)

    def look(self, agent: Agent) -> None:
        """For what has ended, and begin what comes next."""
        self.begin_some(agent)
        self.handles = [handle for handle in self.handles if not self._has_ended(agent, handle)]

    def _has_ended(self, agent: Agent, handle: Any) -> bool:
        """Also if it failed."""
        try:
            return agent.is_done(handle)
        except CopyError as error:
            self._fail(error)
            return True

    def _fail(self, error: CopyError) -> None:
        """It is told once what has begun has ended."""
        self.problem = self.problem or str(error)
        self.left.clear()


@dataclass
class _Source:
    num_blocks: int
    parts: list[_Part]
    is_broken: bool = False
    """nothing is read from it any more"""
    unmaps: list[Unmap] = field(default_factory=list)
    """to be answered when its last read has ended"""

    def num_bytes(self, part: _Part) -> int:
        """Of all blocks in that rank's pool."""
        return self.num_blocks * part.holding.owner.layout.block_bytes

    def probes(self) -> list[slice]:
        """Where in the room for probes that of each part comes."""
        starts = range(0, len(self.parts) * MAX_PROBE_BYTES, MAX_PROBE_BYTES)
        nums = [probe_bytes(self.num_bytes(part)) for part in self.parts]
        return [slice(start, start + num) for start, num in zip(starts, nums, strict=True)]


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
        card = self._made(question.name).agent.card()
        return Done(question.number, card=pack_cards([card]))

    def join(self, question: Join) -> Done:
        """Those of its ranks that have heads of ours. CopyError if they cannot be joined."""
        agent = self._made(question.name).agent
        if self.has(question.source):
            raise CopyError("the source is joined already")
        cards = unpack_cards(question.card)
        source = _Source(question.num_blocks, self._parts(question.source, len(cards)))
        for at, part in enumerate(source.parts):
            num_bytes = source.num_bytes(part)
            try:
                if num_bytes >= MAX_POOL_BYTES:
                    raise CopyError("the source says that it has more blocks than a GPU can hold")
                card = cards[part.holding.owner.rank]
                agent.join(part.name, card, num_bytes + probe_bytes(num_bytes))
            except CopyError:
                self._forget(source.parts[:at])
                raise
        self._sources[question.source] = source
        return Done(question.number)

    def leave(self, question: Unmap) -> Done | None:
        """None: answered later."""
        source = self._sources[question.source]
        source.unmaps.append(question)
        source.is_broken = True
        return next(self._left(question.source), None)

    def probe(self, question: Probe) -> None:
        """Answered later. CopyError if it cannot be begun."""
        ours, source = self._standing(question.source)
        room = ours.regions.probe_room.address
        reads = [
            read_at(source.num_bytes(part), room + place.start, place.stop - place.start)
            for part, place in zip(source.parts, source.probes(), strict=True)
        ]
        self._begin(question, ours.agent, source, reads)

    def fetch(self, question: Fetch, after: Mark) -> None:
        """Behind the work of `after`; answered later. CopyError if it cannot be begun."""
        ours, source = self._standing(question.source)
        theirs = unpack_ids(question.source_blocks).tolist()
        if theirs and max(theirs) >= source.num_blocks:
            raise CopyError("the source names a block that its pool does not have")
        self._copies.wait(after)
        pool, blocks, groups = ours.regions.pool.address, block_ids(question), group_range(question)
        reads = [
            reads_of(self._copies.share, part.holding, pool, theirs, blocks, groups)
            for part in source.parts
        ]
        self._begin(question, ours.agent, source, reads)

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
            own = _agent_name(name, self._copies.share.rank)
            self._ours = _Ours(regions, self._make_agent(own, regions))
        return self._ours

    def _parts(self, source: str, num_ranks: int) -> list[_Part]:
        try:
            found = holdings(self._copies.share, num_ranks)
        except ValueError as error:
            raise CopyError(f"the source's pool cannot be read: {error}") from None
        return [_Part(_agent_name(source, one.owner.rank), one) for one in found]

    def _standing(self, source: str) -> tuple[_Ours, _Source]:
        found = self._sources[source]
        if found.is_broken or self._ours is None:
            raise CopyError("the source cannot be read any more")
        return self._ours, found

    def _begin(
        self, question: Fetch | Probe, agent: Agent, source: _Source, reads: Sequence[Reads]
    ) -> None:
        """`reads`: of each part."""
        both = zip(source.parts, reads, strict=True)
        left = deque((part.name, some) for part, all_ in both for some in all_.cut(MAX_READS))
        read = _UnderWay(question, time.monotonic(), left)
        read.begin_some(agent)
        source.is_broken = bool(read.problem)
        if read.problem and not read.handles:
            raise CopyError(read.problem)
        self._under_way.append(read)

    def _answers(self, ours: _Ours) -> Iterator[Done]:
        for read in list(self._under_way):
            done = self._answer(ours, read)
            if done is not None:
                self._under_way.remove(read)
                yield done
                yield from self._left(read.question.source)

    def _answer(self, ours: _Ours, read: _UnderWay) -> Done | None:
        """None: it has not ended."""
        question, source = read.question, self._sources[read.question.source]
        read.look(ours.agent)
        source.is_broken = source.is_broken or bool(read.problem)
        if read.handles or read.left:
            return None
        if read.problem:
            return Done(question.number, problem=read.problem)
        if isinstance(question, Probe):
            return self._probed(question, source, time.monotonic() - read.start_s)
        blocks = block_ids(question)
        digests = self._copies.digests(blocks, group_range(question), None)
        return Done(question.number, pack_words(digests))

    def _probed(self, question: Probe, source: _Source, seconds: float) -> Done:
        """The digest of all parts, or of one that differs."""
        found = in_all(
            [
                Probed(self._copies.read_digest(place), place.stop - place.start, 0.0)
                for place in source.probes()
            ]
        )
        return Done(question.number, pack_words([found.digest]), found.num_bytes, seconds)

    def _left(self, name: str) -> Iterator[Done]:
        """The source is forgotten, if that was asked for and nothing is read from it any more."""
        source = self._sources[name]
        if not source.unmaps or any(read.question.source == name for read in self._under_way):
            return
        del self._sources[name]
        self._forget(source.parts)
        yield from (Done(unmap.number) for unmap in source.unmaps)

    def _forget(self, parts: Sequence[_Part]) -> None:
        if self._ours is None:
            return
        for part in parts:
            with suppress(CopyError):  # then it has forgotten the source by itself
                self._ours.agent.leave(part.name)

    def _stop(self) -> Iterator[Done]:
        """Our agent goes, and with it all that is under way: nobody may hold a handle any more."""
        reads = [read.question.number for read in self._under_way]
        unmaps = [unmap.number for source in self._sources.values() for unmap in source.unmaps]
        self.close()
        for number in reads:
            yield Done(number, problem="reads were stopped: one did not end")
        for number in unmaps:
            yield Done(number)


def _agent_name(worker: str, rank: int) -> str:
    return f"{worker}/{rank}"
