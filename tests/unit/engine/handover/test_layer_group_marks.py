"""A step is announced before it runs, and each layer group's mark comes when its KV is there."""

import threading
from pathlib import Path

import pytest
import torch

from shared.engine.engine import Engine
from shared.engine.handover.marks import Marks
from shared.engine.handover.output import StepOutput
from shared.engine.layers.kv_cache import pool_of
from shared.engine.scheduling.sequence import SequenceSpec
from shared.kv.layer_groups import GroupRange, layer_groups
from shared.protocol import Attempt, Sampling, Work
from tests.support.models.built_engine import built_engine
from tests.support.models.tiny_model import TINY, write_checkpoint
from tests.support.oracles.engine_integrity import check_engine
from tests.support.settings import settings_with

BLOCK_SIZE = 4
SAMPLING = Sampling(max_tokens=5, temperature=0.0, ignore_eos=True)


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    """Of four layers in two groups, and chunks of two blocks and a half."""
    write_checkpoint(tmp_path, {**TINY, "num_hidden_layers": 4})
    settings = settings_with(
        model=str(tmp_path),
        kv_blocks=16,
        block_size=BLOCK_SIZE,
        max_num_batched_tokens=10,
        max_num_seqs=2,
    )
    return built_engine(settings, "prefill")


def spec_of(num_tokens: int, sampling: Sampling = SAMPLING, name: str = "r") -> SequenceSpec:
    tokens = tuple(range(5, 5 + num_tokens))
    work = Work(Attempt(name, 0), tokens, num_tokens, bytes(32), sampling)
    return SequenceSpec.of(work, BLOCK_SIZE, "prefill")


def test_what_a_mark_says_is_written_and_later_groups_are_not(engine: Engine) -> None:
    groups = layer_groups(engine.memory.layout)
    assert groups.layer_ends == (2, 4)
    pool = pool_of(engine.memory)
    pool.fill_(torch.nan)
    written: list[tuple[bool, bool]] = []
    blocks: list[int] = []

    def note() -> None:
        kv = pool[blocks]
        written.append((not kv[:, :2].isnan().any(), not kv[:, 2:].isnan().any()))

    engine.kv_pool.marks = Marks(groups.layer_ends, note)
    engine.on_scheduled = lambda output: blocks.extend(
        block for _, piece, _ in output.pieces for block in piece.block_ids
    )
    engine.add(spec_of(8))
    output = engine.step()
    assert len(blocks) == 2 and output.sealed
    assert written == [(True, False), (True, True)]


def test_each_chunk_is_announced_with_its_step_before_it_runs(engine: Engine) -> None:
    told: list[tuple[int, tuple[int, ...], int | None]] = []
    reported: list[int] = []

    def on_scheduled(output: StepOutput) -> None:
        told.extend((piece.first_block, piece.block_ids, step) for _, piece, step in output.pieces)
        reported.append(len(output.chunks))

    engine.on_scheduled = on_scheduled
    engine.add(spec_of(20))
    outputs = [engine.step() for _ in range(3)]
    table = tuple(engine.sequences[Attempt("r", 0)].block_table)
    assert told == [(0, table[:2], 1), (2, table[2:4], 2), (4, table[4:], 3)]
    assert reported == [0, 0, 0]
    assert [bool(output.sealed) for output in outputs] == [False, False, True]


def test_a_cached_prefix_is_announced_without_a_step(engine: Engine) -> None:
    engine.add(spec_of(9))
    engine.step()
    engine.release(Attempt("r", 0))
    engine.add(spec_of(9, name="again"))
    pieces = engine.step().pieces
    assert [(piece.first_block, len(piece.block_ids), step) for _, piece, step in pieces] == [
        (0, 2, None),
        (2, 1, 2),
    ]


def test_a_request_of_one_token_hands_nothing_over(engine: Engine) -> None:
    engine.add(spec_of(9, Sampling(max_tokens=1, temperature=0.0)))
    output = engine.step()
    assert output.ended and not output.pieces
    assert not engine.kv_pool.marks._steps


def test_a_twin_of_what_readers_know_changes_no_block_of_theirs(engine: Engine) -> None:
    """Two prompts of the same content, computed at the same time."""
    for name in ("a", "b"):
        engine.add(spec_of(5, name=name))
    pieces = [piece for _ in range(2) for _, piece, _ in engine.step().pieces]
    tables = [list(engine.sequences[Attempt(name, 0)].block_table) for name in ("a", "b")]
    assert [list(piece.block_ids) for piece in pieces] == tables
    assert not set(tables[0]) & set(tables[1])
    for name in ("a", "b"):
        check_engine(engine)
        engine.release(Attempt(name, 0))
    check_engine(engine)
    assert engine.load().held == 0
    assert engine.load().cached == 1


def test_a_step_that_ended_has_no_marks_any_more(engine: Engine) -> None:
    engine.add(spec_of(9))
    engine.step()
    assert engine.kv_pool.marks.of_step(1, 1) is None


def test_whoever_waits_goes_on_with_the_group_it_waits_for() -> None:
    numbers = iter(range(10))
    marks = Marks((2, 3, 6), lambda: next(numbers))
    step = marks.begin_step()
    found: list[tuple[int, int]] = []
    waiting = [
        threading.Thread(target=lambda group=group: found.append((group, step.of_group(group))))
        for group in range(3)
    ]
    for thread in waiting:
        thread.start()
    for layer in range(2):
        step.on_stored(layer)
    waiting[0].join(10)
    assert found == [(0, 0)]
    step.on_stored(2)
    waiting[1].join(10)
    assert found == [(0, 0), (1, 1)]
    step.finish()
    waiting[2].join(10)
    assert found == [(0, 0), (1, 1), (2, 2)]


def test_where_ranks_share_a_model_a_group_is_written_once_the_next_layer_is_begun() -> None:
    """Until then another rank may still be about to write it."""
    numbers = iter(range(10))
    marks = Marks((2, 3, 6), lambda: next(numbers), num_ranks=2)
    step, every = marks.begin_step(), GroupRange(0, 3)
    begun: list[int] = []
    for layer in range(6):
        step.on_stored(layer)
        begun.append(len(step._marks))
    assert begun == [0, 0, 1, 2, 2, 2], "by layer"
    step.finish()
    assert [marks.of_step(step.number, group) for group in range(every.num)] == [0, 1, 2]


class Event:
    """Of work that a device has not done yet."""

    def __init__(self) -> None:
        self.is_done = False

    def query(self) -> bool:
        return self.is_done


def test_what_is_written_is_counted_up_to_the_first_group_that_is_not() -> None:
    events = [Event() for _ in range(4)]
    to_record = iter(events)
    marks = Marks((1, 2, 3, 4), lambda: next(to_record))
    step = marks.begin_step()
    every, later = GroupRange(0, 4), GroupRange(1, 2)
    assert marks.num_written(step.number, every) == 0, "nothing was started"
    for layer in range(3):
        step.on_stored(layer)
    assert marks.num_written(step.number, every) == 0
    events[0].is_done = events[2].is_done = True
    assert marks.num_written(step.number, every) == 1
    assert marks.num_written(step.number, later) == 0
    events[1].is_done = True
    assert marks.num_written(step.number, every) == 3
    step.finish()
    events[3].is_done = True
    assert marks.num_written(step.number, every) == 4
    assert marks.num_written(step.number, later) == 2, "of those asked for"
    marks.end_step(step.number)
    assert marks.num_written(step.number, later) == 2
