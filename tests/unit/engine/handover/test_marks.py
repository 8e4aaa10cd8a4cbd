"""What must have ended before a reserved sequence's blocks are filled in a pool that others map."""

from typing import Any

import numpy as np
import pytest
import torch

from shared.engine.engine import Engine
from shared.engine.handover.marks import Marks
from shared.engine.handover.output import StepOutput
from shared.engine.running.model_runner import OnStored
from shared.engine.scheduling.batch import HostBatch
from shared.protocol import Attempt, Sampling, TokenRun
from tests.unit.engine.fake_runner import (
    BLOCK_SIZE,
    FakeRunner,
    fake_engine,
    make_prompt,
    make_spec,
)

ENDS_EARLY = Sampling(max_tokens=9, temperature=0.7, seed=3)
B = Attempt("b", 0)


class Steps:
    """What each started step writes; its number is the mark of all up to it."""

    def __init__(self) -> None:
        self.blocks: list[set[int]] = []

    def mark(self) -> int:
        return len(self.blocks)


def marked_engine() -> tuple[Engine, Steps]:
    """Of few blocks, that runs ahead."""
    steps = Steps()

    class Noting(FakeRunner):
        def run(
            self,
            packed: HostBatch,
            previous: torch.Tensor | None = None,
            on_stored: OnStored | None = None,
        ) -> torch.Tensor:
            steps.blocks.append(set((np.asarray(packed.slot_mapping) // BLOCK_SIZE).tolist()))
            return super().run(packed, previous, on_stored)

    engine, runner = fake_engine(6, prefix_cache=False, runs_ahead=True)
    runner.__class__ = Noting
    engine.kv_pool.marks = Marks((1,), steps.mark)
    return engine, steps


def reserve_behind(engine: Engine) -> tuple[int, ...]:
    """Another sequence ends while the step after its last runs; b takes its blocks."""
    stops = make_spec("a", make_prompt(7), ENDS_EARLY)
    engine.add(stops)
    while not (output := engine.step()).tokens:
        pass
    engine.reserve(make_spec("b", make_prompt(15), ENDS_EARLY, "decode"))
    while not output.reserved:
        output = engine.step()
    ((attempt, blocks, _),) = output.reserved
    assert attempt == B
    return blocks


def test_the_mark_covers_the_step_that_ran_ahead_of_an_end() -> None:
    engine, steps = marked_engine()
    told: list[Any] = []
    engine.on_scheduled = lambda output: told.extend(marks_of(engine, output))
    blocks = reserve_behind(engine)
    mark: Any = engine.kv_pool.marks.of_attempt(B)
    assert told == [mark], "known before anybody is told of the blocks"
    writers = [number for number, step in enumerate(steps.blocks, 1) if step & set(blocks)]
    assert writers and max(writers) <= mark
    while engine.has_work:
        engine.step()
    assert not any(step & set(blocks) for step in steps.blocks[mark:])


def marks_of(engine: Engine, output: StepOutput) -> list[Any]:
    return [engine.kv_pool.marks.of_attempt(attempt) for attempt, _, _ in output.reserved]


@pytest.mark.parametrize("end", ["adopt", "begin", "abort"])
def test_a_mark_is_forgotten_with_the_reservation(end: str) -> None:
    engine, _ = marked_engine()
    reserve_behind(engine)
    if end == "adopt":
        assert engine.adopt(B, TokenRun(*B, 0, (1,)))
    elif end == "begin":
        assert engine.begin(B, 1)
    else:
        engine.abort(B)
    assert engine.kv_pool.marks.of_attempt(B) is None
    assert not engine.kv_pool.marks._attempts


def test_a_pool_in_host_memory_has_no_marks() -> None:
    engine, _ = fake_engine(8)
    engine.reserve(make_spec("b", make_prompt(5), ENDS_EARLY, "decode"))
    assert engine.step().reserved
    assert engine.kv_pool.marks.of_attempt(B) is None
