"""An engine that --tune sized: the sizes are kept, and its answers are those of any other."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from shared.engine.engine import Engine
from shared.protocol import Sampling
from shared.settings.profiles import LARGEST, PROFILES
from tests.support.fakes.thread_ranks import lead_threads
from tests.support.models.built_engine import built_engine
from tests.support.models.structured_model import run_all, spec_of, tokens_of
from tests.support.models.tiny_model import TINY, write_checkpoint
from tests.support.oracles.engine_integrity import check_engine
from tests.support.settings import settings_with


@pytest.fixture(autouse=True)
def same_threads_after() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "baton" / "tuning"


def engine_of(tmp_path: Path, **settings: object) -> Engine:
    write_checkpoint(tmp_path / "model", TINY)
    fixed = {"model": str(tmp_path / "model"), "device": "cpu", "kv_blocks": 64}
    return built_engine(settings_with(**fixed, **settings))


def test_sizes_are_found_once_and_kept(
    tmp_path: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    engine = engine_of(tmp_path, tune=True)
    (file,) = cache.iterdir()
    assert "tune: ms of steps by sequences: 1: " in caplog.text
    most = PROFILES[LARGEST].cpu
    assert engine.step_size.num_seqs <= most.num_seqs
    assert engine.step_size.num_tokens <= most.num_tokens
    caplog.clear()
    assert engine_of(tmp_path, tune=True).step_size == engine.step_size
    assert "ms of steps" not in caplog.text
    assert f"remove {file} to time again" in caplog.text
    engine_of(tmp_path, tune=True, block_size=8)
    engine_of(tmp_path, tune=True, profile="low_latency")
    assert len(list(cache.iterdir())) == 3


def test_nothing_is_timed_or_kept_without_the_flag(
    tmp_path: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert engine_of(tmp_path).step_size == PROFILES["balanced"].cpu
    assert "tune" not in caplog.text
    assert not cache.exists()


def test_timed_steps_leave_the_pool_as_it_was(tmp_path: Path) -> None:
    tuned, plain = engine_of(tmp_path, tune=True), engine_of(tmp_path)
    assert bytes(tuned.memory.blocks) == bytes(plain.memory.blocks)
    check_engine(tuned)
    assert answer(tuned) == answer(plain)


def answer(engine: Engine) -> list[int]:
    spec = spec_of("r", tuple(range(1, 40)), Sampling(max_tokens=12, temperature=0.0))
    return tokens_of(run_all(engine, [spec])["r"])


def test_ranks_agree_on_sizes_which_the_first_keeps(
    tmp_path: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each times its own steps; had they chosen apart, one would wait for the other's step."""
    monkeypatch.setattr("shared.engine.build.lead", lead_threads)
    caplog.set_level(logging.INFO)
    tuned = engine_of(tmp_path, tune=True, tp=2)
    assert len(list(cache.iterdir())) == 1
    caplog.clear()
    kept = engine_of(tmp_path, tune=True, tp=2)
    assert "ms of steps" not in caplog.text
    assert kept.step_size == tuned.step_size
    assert answer(kept) == answer(tuned) == answer(engine_of(tmp_path))
    engine_of(tmp_path, tune=True)
    assert len(list(cache.iterdir())) == 2
