"""The trial before the first request: it measures, and it leaves nothing behind."""

import time
from pathlib import Path

import pytest
import torch

from shared.engine.running.model_runner import OnStored
from shared.engine.running.trial import NUM_RUNS, prefill_token_s
from shared.engine.scheduling.batch import HostBatch
from tests.support.models.built_engine import built_engine
from tests.support.models.tiny_model import TINY, write_checkpoint
from tests.support.settings import settings_with

pytestmark = pytest.mark.clock

STEP_S = 0.05


class SlowRunner:
    """Takes a known time a run."""

    runs_ahead = False

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

    def rehearsal(self) -> HostBatch | None:
        return None


def test_it_is_the_time_of_a_run_shared_by_its_tokens() -> None:
    runner = SlowRunner()
    token_s = prefill_token_s(runner, num_tokens=50, block_size=4)
    assert runner.query_lens == [(50,)] * NUM_RUNS
    assert token_s == pytest.approx(STEP_S / 50, rel=0.5)


def test_a_small_pool_is_not_written_beyond_its_end(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TINY)
    settings = settings_with(model=str(tmp_path), device="cpu", kv_blocks=2, block_size=4)
    engine = built_engine(settings, "decode")
    assert engine.try_out() > 0
    engine.check_integrity()


def test_the_engine_is_as_new_after_it(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TINY)
    settings = settings_with(model=str(tmp_path), device="cpu", kv_blocks=8)
    engine = built_engine(settings, "decode")
    assert engine.try_out() > 0
    engine.check_integrity()
    assert engine.load().free == 8
    assert not engine.has_work
    assert not any(engine.counters.totals().values())
    assert not engine.cached_prefixes()
