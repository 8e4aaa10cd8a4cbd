"""The engine through random lives of many sequences, and the faults that these find."""

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from shared.engine import engine
from shared.engine.handover import hand_overs
from shared.engine.handover.adoptions import Adoptions
from shared.engine.scheduling import block_table, scheduler, sequence
from shared.engine.scheduling.block_pool import BlockPool
from shared.engine.scheduling.scheduler import Scheduler
from shared.engine.scheduling.sequence import Sequence
from shared.kv.block_hash import block_hash
from shared.kv.memory import Piece
from tests.unit.engine.engine_lives import SETTINGS, EngineLives, EngineLivesAhead, assert_found

EngineLives.TestCase.settings = SETTINGS
TestEngineLives = EngineLives.TestCase
EngineLivesAhead.TestCase.settings = SETTINGS
TestEngineLivesAhead = EngineLivesAhead.TestCase


def test_sequences_that_keep_their_blocks_early_end_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence, "MAX_PREEMPTIONS", 1)
    run_state_machine_as_test(EngineLives, settings=settings(SETTINGS, max_examples=60))


_START = Adoptions._start
_BEGIN = Adoptions.begin
_HOLD_BACK = Adoptions.hold_back


def _forget_parent(sequence: Sequence, index: int, block_size: int) -> bytes:
    start = index * block_size
    return block_hash(bytes(32), sequence.token_ids[start : start + block_size])


def _keep_computed(pool: BlockPool, sequence: Sequence) -> None:
    computed = sequence.num_computed_tokens
    block_table.drop_blocks(pool, sequence)
    sequence.num_computed_tokens = computed


def _never_commit(pool: BlockPool, sequence: Sequence, most: int | None = None) -> None:
    sequence.num_committed_blocks = sequence.num_computed_tokens // pool.block_size


def _always_grow(self: Scheduler, sequence: Sequence, batch: object) -> bool:
    return True


def _by_arrival(sequence: Sequence) -> tuple[int, int]:
    return 0, sequence.arrival


def _spare_all(running: object, reserved: object) -> int:
    return 1000


def _keep_source(self: Scheduler, batch: object) -> None:
    pass


def _free_half(pool: BlockPool, sequence: Sequence) -> None:
    sequence.block_table.pop()
    block_table.drop_blocks(pool, sequence)


def _lose_pieces(
    pool: BlockPool, sequence: Sequence, num_tokens: int, *, last: bool
) -> tuple[Piece | None, Piece | None]:
    return None, None


def _name_at_once(self: Adoptions, sequence: Sequence, token_id: int) -> None:
    _START(self, sequence, token_id)
    block_table.commit_blocks(self._scheduler.pool, sequence)


def _verified_by_begin(self: Adoptions, sequence: Sequence, token_id: int) -> bool:
    begun = _BEGIN(self, sequence, token_id)
    sequence.unverified = False
    return begun


def _count_twice(self: Adoptions, sequence: Sequence) -> None:
    _HOLD_BACK(self, sequence)
    sequence.num_computed_tokens += 1


def _no_event(self: BlockPool, name: bytes, depth: int) -> None:
    pass


@pytest.mark.parametrize(
    ("owner", "name", "mutant"),
    [
        (block_table, "_hash_of_block", _forget_parent),
        (scheduler, "drop_blocks", _keep_computed),
        (scheduler, "drop_blocks", _free_half),
        (engine, "commit_blocks", _never_commit),
        (hand_overs, "next_pieces", _lose_pieces),
        (Adoptions, "_start", _name_at_once),
        (Adoptions, "begin", _verified_by_begin),
        (Adoptions, "hold_back", _count_twice),
        (Scheduler, "_grow", _always_grow),
        (scheduler, "num_spare_blocks", _spare_all),
        (scheduler, "rank_of", _by_arrival),
        (Scheduler, "release_sources", _keep_source),
        (BlockPool, "_note_removed", _no_event),
    ],
)
def test_the_machine_finds_planted_faults(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, mutant: object
) -> None:
    assert_found(EngineLives, monkeypatch, owner, name, mutant)


def _never(self: Scheduler) -> bool:
    """As if a sequence could be preempted while a step that computes it is in flight."""
    return False


@pytest.mark.parametrize(
    ("owner", "name", "mutant"),
    [
        (Scheduler, "must_preempt", property(_never)),
        (Scheduler, "_lacks_blocks", property(_never)),
        (Scheduler, "_grow", _always_grow),
    ],
)
def test_the_machine_that_runs_ahead_finds_planted_faults(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, mutant: object
) -> None:
    assert_found(EngineLivesAhead, monkeypatch, owner, name, mutant)
