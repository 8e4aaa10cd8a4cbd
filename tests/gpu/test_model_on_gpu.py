"""The engine's own model on a GPU: float32 logits of the CPU, no waiting inside a step."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from shared.engine.build import build_engine
from shared.engine.sequence import SequenceSpec
from shared.protocol import Attempt, Sampling
from shared.settings import Settings
from tests.tiny_model import TINY, TINY_GPT2, Rows, TinyRunner, hand_made_batch, write_checkpoint

QWEN3 = {**TINY, "architectures": ["Qwen3ForCausalLM"], "head_dim": 64}
MISTRAL = {**TINY, "architectures": ["MistralForCausalLM"], "sliding_window": 30}
PROMPTS = [[(7 * number + step * step) % 131 for step in range(number)] for number in (1, 17, 130)]
NUM_TOKENS = 12
MAX_ERROR = 2e-3
"""of logits around 20: float32 sums in another order, without TF32"""


@pytest.fixture(autouse=True)
def full_float32() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    "config", [TINY, QWEN3, MISTRAL, TINY_GPT2], ids=["llama", "qwen3", "mistral", "gpt2"]
)
def test_logits_equal_the_cpus(config: Mapping[str, Any], tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, config)
    runners = [
        TinyRunner(checkpoint, num_blocks=30, block_size=16, device=device)
        for device in ("cpu", "cuda")
    ]
    steps = [
        Rows(prompt, 0, len(prompt), range(6 * index, 6 * index + 9))
        for index, prompt in enumerate(PROMPTS)
    ]
    cpu, cuda = (runner.run(steps, all_rows=True).cpu() for runner in runners)
    torch.testing.assert_close(cuda, cpu, rtol=0, atol=MAX_ERROR)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("config", [TINY, MISTRAL, TINY_GPT2], ids=["llama", "mistral", "gpt2"])
def test_a_step_never_waits_for_the_gpu(config: Mapping[str, Any], tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, config)
    tiny = TinyRunner(checkpoint, num_blocks=20, block_size=16, device="cuda")
    steps = [Rows(PROMPTS[2], 0, 100, range(9)), Rows(PROMPTS[1], 16, 17, range(10, 13))]
    batch = hand_made_batch(steps, 16, torch.device("cuda"), all_rows=False)
    tiny.runner.run(batch)
    fresh = replace(batch)  # an equal batch, so that nothing of the last run is reused
    try:
        torch.cuda.set_sync_debug_mode("error")
        tiny.runner.run(fresh)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_greedy_tokens_equal_the_cpus(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TINY)
    assert _answers(tmp_path, "cuda") == _answers(tmp_path, "cpu")


def _answers(path: Path, device: str) -> dict[str, list[int]]:
    settings = Settings(
        model=str(path), device=device, dtype="float32", kv_blocks=40, max_num_batched_tokens=80
    )
    engine = build_engine(settings, "decode")
    sampling = Sampling(max_tokens=NUM_TOKENS, temperature=0, ignore_eos=True)
    for prompt in PROMPTS:
        attempt = Attempt(str(len(prompt)), 0)
        engine.add(
            SequenceSpec(
                attempt, tuple(prompt), len(prompt), (), bytes(32), sampling, "full", "agg"
            )
        )
    answers: dict[str, list[int]] = {}
    while engine.has_work:
        for run in engine.step().tokens:
            answers.setdefault(run.rid, []).extend(run.token_ids)
    engine.check_integrity()
    return answers
