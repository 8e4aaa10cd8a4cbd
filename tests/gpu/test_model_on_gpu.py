"""The engine's own model on a GPU: the CPU's tokens in float32, graphs that change no bit, no
waiting inside a step."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch

from shared.engine.layers.row_sizes import graph_sizes
from shared.engine.scheduling.batch import HostBatch
from shared.engine.scheduling.sequence import SequenceSpec
from shared.engine.scheduling.token_rows import as_token_rows
from shared.protocol import Attempt, Sampling, Work
from tests.gpu.device_model import device_runner
from tests.support.models.built_engine import built_engine
from tests.support.models.tiny_model import (
    TINY,
    TINY_GPT2,
    Rows,
    TinyRunner,
    hand_made_batch,
    write_checkpoint,
)
from tests.support.oracles.engine_integrity import check_engine
from tests.support.settings import settings_with

QWEN3 = {**TINY, "architectures": ["Qwen3ForCausalLM"], "head_dim": 64}
MISTRAL = {**TINY, "architectures": ["MistralForCausalLM"], "sliding_window": 30}
WIDE = {**TINY, "head_dim": 128, "hidden_size": 256}
CONFIGS = {"llama": TINY, "qwen3": QWEN3, "mistral": MISTRAL, "gpt2": TINY_GPT2, "wide": WIDE}
PROMPTS = [[(7 * number + step * step) % 131 for step in range(number)] for number in (1, 17, 130)]
NUM_TOKENS = 12
MAX_ERROR = 2e-3
"""of logits around 20: float32 sums in another order, without TF32"""
MAX_ROWS = 40


@pytest.fixture(autouse=True)
def full_float32() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_equal_the_cpus(name: str, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, CONFIGS[name])
    steps = [
        Rows(prompt, 0, len(prompt), range(10 * index, 10 * index + 9))
        for index, prompt in enumerate(PROMPTS)
    ]
    on_cpu = TinyRunner(checkpoint, num_blocks=30, block_size=16).run(steps, all_rows=True)
    batch = hand_made_batch(steps, 16, all_rows=True)
    on_gpu = device_runner(checkpoint, num_blocks=30, max_sequences=200).run(batch).cpu()
    torch.testing.assert_close(on_gpu, on_cpu, rtol=0, atol=MAX_ERROR)


@pytest.mark.parametrize("name", CONFIGS)
def test_prompts_of_a_captured_step_have_the_cpus_logits(name: str, tmp_path: Path) -> None:
    """Whole prompts, and their ends when the rest is there, as rows of a graph: the first run
    captures it, the others replay it."""
    checkpoint = write_checkpoint(tmp_path, CONFIGS[name])
    plain = TinyRunner(checkpoint, num_blocks=30, block_size=16)
    runner = device_runner(checkpoint, num_blocks=30, max_sequences=200)
    for cut in (0, 0, 9, 1):
        steps = [
            Rows(prompt, min(cut, len(prompt) - 1), len(prompt), range(10 * index, 10 * index + 9))
            for index, prompt in enumerate(PROMPTS)
        ]
        batch = hand_made_batch(steps, 16, all_rows=False)
        rows = as_token_rows(batch, runner.whole_rows)
        assert batch.shape.has_chunks and not rows.shape.has_chunks
        wanted = plain.runner.run(batch)
        torch.testing.assert_close(runner.run(rows).cpu(), wanted, rtol=0, atol=MAX_ERROR)


@pytest.mark.parametrize("eager", [False, True], ids=["graphs", "eager"])
@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_tokens_equal_the_cpus(name: str, eager: bool, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, CONFIGS[name])
    assert _answers(tmp_path, "cuda", eager=eager) == _answers(tmp_path, "cpu")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["llama", "qwen3", "wide"])
def test_a_replay_gives_the_bits_of_the_kernels_one_by_one(
    name: str, dtype: str, tmp_path: Path
) -> None:
    """At every size, and at one row less: the padding row must not matter."""
    checkpoint = write_checkpoint(tmp_path, CONFIGS[name])
    runners = [
        device_runner(
            checkpoint, num_blocks=6 * MAX_ROWS, dtype=dtype, max_sequences=MAX_ROWS, eager=eager
        )
        for eager in (True, False)
    ]
    prompts = [Decoding(MAX_ROWS, step) for step in range(3)]
    for size in graph_sizes(MAX_ROWS):
        for num_rows in {size, max(1, size - 1)}:
            for number, lengths in enumerate(prompts):  # the first captures, the others replay
                logits = []
                for runner in runners:
                    generator = torch.Generator(device="cuda").manual_seed(number)
                    runner.kv_pool.normal_(generator=generator)
                    logits.append(runner.run(lengths(num_rows)).clone())
                assert logits[0].isfinite().all()
                assert torch.equal(*logits), (size, num_rows, number)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2"])
def test_a_step_never_waits_for_the_gpu(name: str, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, CONFIGS[name])
    runner = device_runner(checkpoint, num_blocks=60)
    mixed = [Rows(PROMPTS[1], 16, 17, range(10, 13)), Rows(PROMPTS[2], 0, 100, range(9))]
    batches = [hand_made_batch(mixed, 16, all_rows=False), Decoding(6, 0)(6)]
    for batch in batches:
        runner.run(batch)
    try:
        torch.cuda.set_sync_debug_mode("error")
        for batch in batches:
            runner.run(batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")


class Decoding:
    """Steps in which some of `most` sequences of random lengths decode."""

    def __init__(self, most: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._lengths = torch.randint(1, 90, (most,), generator=generator).tolist()
        self._ids = torch.randint(131, (most,), generator=generator).tolist()

    def __call__(self, num_rows: int) -> HostBatch:
        steps = [
            Rows([token] * length, length - 1, length, range(6 * row, 6 * row + 6))
            for row, (length, token) in enumerate(zip(self._lengths, self._ids, strict=True))
        ]
        return hand_made_batch(steps[:num_rows], 16, all_rows=False)


def _answers(path: Path, device: str, *, eager: bool = False) -> Mapping[str, list[int]]:
    settings = settings_with(
        model=str(path),
        device=device,
        dtype="float32",
        kv_blocks=40,
        max_num_batched_tokens=80,
        eager=eager,
    )
    engine = built_engine(settings, "decode")
    sampling = Sampling(max_tokens=NUM_TOKENS, temperature=0, ignore_eos=True)
    for prompt in PROMPTS:
        attempt = Attempt(str(len(prompt)), 0)
        work = Work(attempt, tuple(prompt), len(prompt), bytes(32), sampling)
        engine.add(SequenceSpec(work, (), "full", "agg"))
    answers: dict[str, list[int]] = {}
    while engine.has_work:
        for run in engine.step().tokens:
            answers.setdefault(run.rid, []).extend(run.token_ids)
    check_engine(engine)
    return answers
