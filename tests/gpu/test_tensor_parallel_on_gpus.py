"""Ranks on several GPUs: sums over peer pointers, replayed in graphs, and an engine over all."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.models.tiny_model import TINY, write_checkpoint
from tests.support.pairs.peer_rank import CALLS, NUM_REPLAYS

pytestmark = pytest.mark.gpu(2)
ROOT = Path(__file__).parents[2]
LLAMA = {**TINY, "num_attention_heads": 8, "num_key_value_heads": 2}
MODELS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "llama-1-kv-head": {**LLAMA, "num_key_value_heads": 1},
    "qwen3": {**LLAMA, "architectures": ["Qwen3ForCausalLM"], "tie_word_embeddings": True},
    "qwen2": {**LLAMA, "architectures": ["Qwen2ForCausalLM"]},
}
TIMEOUT_S = 100


def _start(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(  # noqa: S603  (our own files)
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env=os.environ | {"TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NCCL_NVLS_ENABLE": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _statuses(commands: Sequence[Sequence[str]]) -> list[int]:
    """Exit statuses of processes that run together."""
    running = [_start(*command) for command in commands]
    try:
        for process in running:
            sys.stderr.write(process.communicate(timeout=TIMEOUT_S)[1])
        return [process.returncode for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()


def _peer_ranks(size: int, folder: Path, *arguments: str) -> list[int]:
    common = (str(size), str(folder), "--device", "cuda", *arguments)
    return _statuses(
        [("tests.support.pairs.peer_rank", str(rank), *common) for rank in range(size)]
    )


def _answers(path: Path, size: int, **changes: object) -> dict[str, list[int]]:
    settings = _settings(path, size) | changes
    process = _start("tests.support.pairs.ranked_engine", json.dumps(settings))
    try:
        told, problems = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, problems
    answers: dict[str, list[int]] = json.loads(told.splitlines()[-1])
    return answers


def _settings(path: Path, size: int) -> dict[str, Any]:
    return {
        "model": str(path),
        "device": "cuda:0",
        "dtype": "float32",
        "tp": size,
        "block_size": 16,
        "kv_blocks": 64,
        "max_model_len": 128,
        "max_num_batched_tokens": 32,
        "max_num_seqs": 4,
    }


@pytest.mark.parametrize("size", [2, 4])
def test_every_rank_gets_the_sum_in_the_order_of_the_ranks(size: int, tmp_path: Path) -> None:
    """Where there are fewer devices than ranks they share them, by turns."""
    assert _peer_ranks(size, tmp_path) == [0] * size


def test_one_wrong_number_is_found(tmp_path: Path) -> None:
    num_results = 2 * len(CALLS) * (1 + NUM_REPLAYS)
    assert _peer_ranks(2, tmp_path, "--wrong") == [num_results] * 2


def test_the_group_keeps_the_contract(tmp_path: Path) -> None:
    command = ("tests.support.oracles.ranks_contract",)
    ranks = [(*command, str(rank), "2", str(tmp_path), "cuda:0") for rank in range(2)]
    assert _statuses(ranks) == [0, 0]


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.gpu(4))])
@pytest.mark.parametrize("name", MODELS)
def test_several_gpus_answer_token_for_token_as_one_does(
    name: str, size: int, tmp_path: Path
) -> None:
    write_checkpoint(tmp_path, MODELS[name])
    assert _answers(tmp_path, size) == _answers(tmp_path, 1)


def test_ranks_that_time_their_steps_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 keeps what they found, for all of them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_checkpoint(tmp_path / "model", LLAMA)
    tuned = {"tune": True, "max_num_seqs": 0, "max_num_batched_tokens": 0}
    for _ in ("timed", "read"):
        assert _answers(tmp_path / "model", 2, **tuned) == _answers(tmp_path / "model", 1)
        assert len(list((tmp_path / "cache/baton/tuning").iterdir())) == 1


@pytest.mark.parametrize("mode", ["forever", "stuck"])
def test_a_lost_rank_is_reported(mode: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, LLAMA)
    process = _start("tests.support.pairs.ranked_engine", json.dumps(_settings(tmp_path, 2)), mode)
    try:
        assert process.stdout is not None
        assert process.stdout.readline(), process.communicate()
        (lost,) = psutil.Process(process.pid).children()
        lost.kill()
        _, problems = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == -signal.SIGKILL, "as the rank, and no fault of its own"
    assert f"rank 1 (pid {lost.pid}) was killed by SIGKILL" in problems
