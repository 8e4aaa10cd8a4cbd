"""The trial before the first request: it measures, and it leaves nothing behind."""

import time
from pathlib import Path

import pytest
import torch

from shared.engine.running.model_runner import OnStored
from shared.engine.running.step_size import StepSize
from shared.engine.running.step_time import StepTime
from shared.engine.running.trial import MOST_ON_HOST, NUM_RUNS, Trial, try_steps
from shared.engine.sampling.prompt_scores import PromptScorer
from shared.engine.scheduling.batch import HostBatch
from tests.support.models.built_engine import built_engine
from tests.support.models.tiny_model import TINY, write_checkpoint
from tests.support.oracles.engine_integrity import check_engine
from tests.support.settings import settings_with

pytestmark = pytest.mark.clock

STEP_S = 0.05


class SlowRunner:
    """Takes a known time a run."""

    runs_ahead = False
    whole_rows = 0
    device = torch.device("cpu")
    scorer = PromptScorer(lambda hidden: hidden, 1)

    def __init__(self) -> None:
        self.query_lens: list[tuple[int, ...]] = []

    def run(
        self,
        batch: HostBatch,
        previous: torch.Tensor | None = None,
        on_stored: OnStored | None = None,
    ) -> torch.Tensor:
        self.query_lens.append(tuple(batch.query_lens.tolist()))
        assert int(batch.slot_mapping.max()) < batch.block_tables.shape[1] * 4
        time.sleep(STEP_S)
        return torch.zeros(1, 8)

    def meet(self) -> None:
        return None

    def rehearsal(self) -> HostBatch | None:
        return None

    def exercise(self) -> torch.Tensor | None:
        return None


def test_it_is_the_time_of_a_run_shared_by_its_tokens() -> None:
    runner = SlowRunner()
    trial = try_steps(runner, most_tokens=50, block_size=4)
    assert runner.query_lens == [(50,)] * NUM_RUNS + [(1,)] * NUM_RUNS
    assert trial.prefill_token_s == pytest.approx(STEP_S / 50, rel=0.5)
    assert trial.shortest_s == pytest.approx(STEP_S, rel=0.5)


@pytest.mark.parametrize(("runs_ahead", "num_tokens"), [(False, MOST_ON_HOST), (True, 500)])
def test_a_cpu_does_not_try_a_whole_step(num_tokens: int, *, runs_ahead: bool) -> None:
    runner = SlowRunner()
    runner.runs_ahead = runs_ahead
    assert try_steps(runner, most_tokens=500, block_size=4).num_tokens == num_tokens
    assert runner.query_lens[0] == (num_tokens,)


def test_the_costs_predict_the_two_steps_of_the_trial() -> None:
    trial = Trial(shortest_s=0.010, prompt_s=0.074, num_tokens=64)
    model = StepTime(trial.costs)
    assert model.predict(StepSize.of_chunk(0, 64)) == pytest.approx(0.074, rel=0.01)
    assert model.predict(StepSize.of_chunk(0, 1)) == pytest.approx(0.010, rel=0.15)


def test_a_prompt_that_took_no_longer_than_a_token_has_costs_all_the_same() -> None:
    costs = Trial(shortest_s=0.010, prompt_s=0.009, num_tokens=64).costs
    assert all(cost > 0 for cost in costs)


def test_a_small_pool_is_not_written_beyond_its_end(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TINY)
    settings = settings_with(model=str(tmp_path), device="cpu", kv_blocks=2, block_size=4)
    engine = built_engine(settings, "decode")
    assert engine.try_out() > 0
    check_engine(engine)


def test_the_engine_is_as_new_after_it(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TINY)
    settings = settings_with(model=str(tmp_path), device="cpu", kv_blocks=8)
    engine = built_engine(settings, "decode")
    assert engine.try_out() > 0
    check_engine(engine)
    assert engine.load().free == 8
    assert not engine.has_work
    assert not any(engine.counters.totals().values())
    assert not engine.cached_prefixes()
