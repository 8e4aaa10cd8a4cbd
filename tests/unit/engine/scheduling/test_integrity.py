"""check_integrity() of a whole engine finds queues and tables that disagree."""

from collections.abc import Callable

import pytest

from shared.engine.engine import Engine
from shared.engine.scheduling.scheduler import Scheduler
from shared.engine.scheduling.sequence import Sequence, SequenceState
from shared.protocol import Attempt, Sampling
from tests.support.oracles.engine_integrity import IntegrityError, check_engine
from tests.unit.engine.fake_runner import fake_engine, make_spec

Mutant = Callable[[Engine, Scheduler, Sequence], None]


def _drop_from_queue(engine: Engine, scheduler: Scheduler, sequence: Sequence) -> None:
    scheduler.running.remove(sequence)


def _forget_sequence(engine: Engine, scheduler: Scheduler, sequence: Sequence) -> None:
    scheduler.pool.free(sequence.block_table)
    del engine.sequences[sequence.attempt]


def _reorder(engine: Engine, scheduler: Scheduler, sequence: Sequence) -> None:
    scheduler.running.reverse()


def _overtake(engine: Engine, scheduler: Scheduler, sequence: Sequence) -> None:
    scheduler.waiting[0].arrival = -1


def _waiting_with_blocks(engine: Engine, scheduler: Scheduler, sequence: Sequence) -> None:
    youngest = scheduler.running.pop()
    scheduler.waiting.insert(0, youngest)
    youngest.state = SequenceState.WAITING


def _table_too_short(engine: Engine, scheduler: Scheduler, sequence: Sequence) -> None:
    sequence.num_computed_tokens = len(sequence.token_ids) + 1


def _other_content(engine: Engine, scheduler: Scheduler, sequence: Sequence) -> None:
    sequence.block_hashes[0] = bytes(32)


def _written_while_indexed(engine: Engine, scheduler: Scheduler, sequence: Sequence) -> None:
    sequence.num_committed_blocks -= 1


def _behind_with_commits(engine: Engine, scheduler: Scheduler, sequence: Sequence) -> None:
    sequence.num_computed_tokens = 4


@pytest.mark.parametrize(
    ("mutant", "message"),
    [
        (_drop_from_queue, "running queue"),
        (_forget_sequence, "running queue"),
        (_reorder, "out of order"),
        (_overtake, "overtook"),
        (_waiting_with_blocks, "in state waiting"),
        (_table_too_short, "computed tokens"),
        (_other_content, "another content"),
        (_written_while_indexed, "still to be written"),
        (_behind_with_commits, "committed"),
    ],
)
def test_each_disagreement_is_found_and_named(mutant: Mutant, message: str) -> None:
    engine, _ = fake_engine(32, budget=32, max_num_seqs=2)
    for index in range(3):
        tokens = tuple(range(index, index + 9))
        engine.add(make_spec(str(index), tokens, Sampling(max_tokens=9, temperature=0.0)))
    engine.step()
    check_engine(engine)
    scheduler = engine._scheduler
    mutant(engine, scheduler, engine.sequences[Attempt("0", 0)])
    with pytest.raises(IntegrityError, match=message):
        check_engine(engine)
