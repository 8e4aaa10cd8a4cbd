"""--tune on a GPU: sizes are found before the pool and the graphs are made, and cost neither."""

import gc
import logging
from pathlib import Path

import pytest
import torch

from shared.engine.engine import Engine
from shared.settings.profiles import LARGEST, PROFILES
from tests.support.models.built_engine import built_engine
from tests.support.models.tiny_model import TINY, write_checkpoint
from tests.support.oracles.engine_integrity import check_engine
from tests.support.settings import settings_with

WIDE = {
    **TINY,
    "head_dim": 128,
    "hidden_size": 1024,
    "num_attention_heads": 8,
    "num_hidden_layers": 8,
    "max_position_embeddings": 4096,
}
SHARE = 0.5
"""of the GPU's memory"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "baton" / "tuning"


def engine_of(tmp_path: Path, **settings: object) -> Engine:
    write_checkpoint(tmp_path / "model", WIDE)
    fixed = {"model": str(tmp_path / "model"), "device": "cuda", "dtype": "bfloat16"}
    chosen = settings_with(**fixed, gpu_memory_utilization=SHARE, **settings)
    return built_engine(chosen)


@pytest.mark.parametrize("eager", [False, True], ids=["graphs", "eager"])
def test_the_pool_is_that_of_the_sizes_which_were_found(
    eager: bool, tmp_path: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What the timed steps read and captured is given back before memory is measured."""
    caplog.set_level(logging.INFO)
    tuned = engine_of(tmp_path, tune=True, eager=eager)
    size, num_blocks = tuned.step_size, tuned.memory.num_blocks
    assert "tune: took" in caplog.text
    most = PROFILES[LARGEST].gpu
    assert size.num_tokens <= most.num_tokens
    assert size.num_seqs <= most.num_seqs
    check_engine(tuned)
    tuned.try_out()
    tuned.rehearse()
    del tuned  # its pool too, whose parts know each other
    gc.collect()
    torch.cuda.empty_cache()
    caplog.clear()
    kept = engine_of(tmp_path, tune=True, eager=eager)
    assert "ms of steps" not in caplog.text
    assert kept.step_size == size
    assert abs(kept.memory.num_blocks - num_blocks) <= 0.01 * num_blocks
    assert len(list(cache.iterdir())) == 1
