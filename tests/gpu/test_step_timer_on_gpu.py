"""The time of a step on a GPU is the device's, whatever the host does meanwhile."""

from pathlib import Path

import pytest
import torch

from shared.engine.running.step_timer import EventPair, EventTimer
from shared.engine.scheduling.sequence import SequenceSpec
from shared.protocol import Attempt, Sampling, Work
from tests.support.models.built_engine import built_engine
from tests.support.models.tiny_model import TINY, write_checkpoint
from tests.support.settings import settings_with

SIZE = 4096


def launch(timer: EventTimer, matrix: torch.Tensor, num_products: int) -> EventPair:
    timer.begin()
    for _ in range(num_products):
        torch.mm(matrix, matrix)
    return timer.end()


def test_a_step_that_was_launched_early_begins_when_the_one_before_ends() -> None:
    timer, matrix = EventTimer(), torch.randn(SIZE, SIZE, device="cuda")
    launch(timer, matrix, 10)
    torch.cuda.synchronize()
    first, second = launch(timer, matrix, 50), launch(timer, matrix, 100)
    assert second.seconds() is None, "the device still works on it"
    torch.cuda.synchronize()
    first_s, second_s = first.seconds(), second.seconds()
    assert first_s is not None
    assert second_s == pytest.approx(2 * first_s, rel=0.2)


def test_an_engine_learns_from_the_steps_that_it_books(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TINY)
    engine = built_engine(settings_with(model=str(tmp_path), device="cuda", kv_blocks=64))
    engine.try_out()
    engine.step_clock.warm()
    sampling = Sampling(100, temperature=0.0, ignore_eos=True)
    work = Work(Attempt("a", 0), tuple(range(40)), 40, bytes(32), sampling)
    engine.add(SequenceSpec.of(work, 16, "full", "agg"))
    while engine.has_work:
        engine.step()
    num_timed = engine.step_clock.model.error.count
    assert num_timed >= 0.9 * (1 + engine.counters.steps // 4), "its events were reached in time"
