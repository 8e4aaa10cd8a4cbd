"""How a reserved sequence comes to decode, on the worker that KV arrives at.

    RESERVED -> near -> adopt            the KV is here and verified
    RESERVED -> near -> begin -> adopt   it is here, and verified while a step is computed from it

A sequence that has begun takes one step. Nothing of that step is told, and no block is named,
before it is adopted; if the verdict is bad, it is aborted and none of it was ever seen.
"""

from collections.abc import Iterator

from shared.engine.handover.kv_pool import KVPool
from shared.engine.scheduling.block_table import commit_blocks
from shared.engine.scheduling.scheduler import Scheduler
from shared.engine.scheduling.sequence import Sequence, SequenceState
from shared.errors import ProtocolError
from shared.protocol import TokenRun

MAX_COMMITTED = 512
"""blocks of an adopted prompt that one step names: thousands would hold everybody's token up"""


class Adoptions:
    """Of one engine."""

    def __init__(self, scheduler: Scheduler, kv_pool: KVPool) -> None:
        self._scheduler = scheduler
        self._kv_pool = kv_pool
        self._near: set[Sequence] = set()
        """that will be adopted any moment"""
        self._adopted: list[Sequence] = []
        """whose blocks are still to be named; a step is started first"""

    @property
    def any_near(self) -> bool:
        """Some sequence will be adopted any moment."""
        return bool(self._near)

    def near(self, sequence: Sequence) -> None:
        """If it waits for its KV, that is nearly complete."""
        if sequence.awaits_kv:
            self._near.add(sequence)

    def begin(self, sequence: Sequence, token_id: int) -> bool:
        """Go on from token 1 ahead of the verdict. False, and nothing done, where that is of no
        use: the sequence does not wait for its KV any more, follows a grammar, is computed alone,
        or there is no block for another token."""
        work = sequence.work
        if not sequence.awaits_kv or sequence.unverified or work.sampling.grammar or work.alone:
            return False
        if not self._has_room(sequence):
            return False
        self._scheduler.adopt(sequence)
        self._start(sequence, token_id)
        sequence.unverified = True
        sequence.state = SequenceState.DECODE
        self._near.add(sequence)
        return True

    def adopt(self, sequence: Sequence, token_id: int) -> None:
        """The KV is verified. GrammarError if token 1 is not in the sequence's grammar."""
        if not sequence.unverified:
            self._start(sequence, token_id)
        self.forget(sequence)
        if sequence.state is SequenceState.RESERVED:
            self._scheduler.adopt(sequence)
        sequence.state = SequenceState.VERIFIED
        self._adopted.append(sequence)

    def hold_back(self, sequence: Sequence) -> None:
        """The step that it began with has ended before the verdict; its token is not booked."""
        sequence.state = SequenceState.RESERVED
        self._scheduler.running.remove(sequence)
        self._scheduler.reserved.append(sequence)

    def held_back(self) -> Iterator[Sequence]:
        """Those that are adopted now, and have not been aborted since, whose token was held back:
        it is computed, and to be booked."""
        for sequence in self._adopted:
            if sequence.unbooked is not None and sequence.state is SequenceState.VERIFIED:
                sequence.num_computed_tokens += 1
                yield sequence

    def commit(self) -> None:
        """Nobody waits for the names of a prompt's blocks, and they take longer than the start of
        a step; those of a long one are made step by step."""
        for sequence in self._adopted:
            if sequence.state in (SequenceState.VERIFIED, SequenceState.DECODE):
                commit_blocks(self._scheduler.pool, sequence, MAX_COMMITTED)
        self._adopted.clear()

    def forget(self, sequence: Sequence) -> None:
        """It does not wait for its KV any more."""
        sequence.unverified = False
        self._near.discard(sequence)

    def _has_room(self, sequence: Sequence) -> bool:
        """A block for token 1 is there, or taken now."""
        pool, table = self._scheduler.pool, sequence.block_table
        if len(sequence.token_ids) < len(table) * pool.block_size:
            return True
        if pool.num_available:
            table.extend(pool.allocate(1))
            return True
        return False

    def _start(self, sequence: Sequence, token_id: int) -> None:
        self._kv_pool.marks.forget(sequence.attempt)
        sequence.num_computed_tokens = len(sequence.token_ids)
        sequence.append(token_id)


def check_token_1(sequence: Sequence, run: TokenRun) -> None:
    """ProtocolError if the run is not the one token that continues the sequence, or another one
    than it went on from."""
    index = sequence.num_output_tokens - sequence.unverified
    if len(run.token_ids) != 1 or run.index != index:
        raise ProtocolError(f"token 1 has index {run.index}, not {index}")
    if sequence.unverified and run.token_ids[0] != sequence.token_ids[-1]:
        raise ProtocolError(f"token 1 is {run.token_ids[0]}, not {sequence.token_ids[-1]}")
