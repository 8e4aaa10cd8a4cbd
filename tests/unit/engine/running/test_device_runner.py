"""The runner of a GPU with its kernels interpreted: the CPU's logits, and the CPU's tokens with the
host a step ahead."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from shared.engine.engine import Engine
from shared.engine.handover.kv_pool import host_pool
from shared.engine.layers.device_traits import DeviceTraits
from shared.engine.layers.kernel_operations import KernelOperations
from shared.engine.layers.kv_cache import pool_shape
from shared.engine.layers.paged_attention import PagedAttention
from shared.engine.layers.weights import WeightReader
from shared.engine.loading.runner_parts import load_model
from shared.engine.loading.tuning.loaded_step import decode_step, full_step
from shared.engine.running.decode_graphs import DecodeGraphs
from shared.engine.running.device_runner import DeviceRunner
from shared.engine.running.model_runner import Runner
from shared.engine.running.step_inputs import StepInputs
from shared.engine.sampling.device_sampler import DeviceSampler
from shared.engine.sampling.sampled_tokens import TokenSampler
from shared.engine.sampling.sampler import Sampler
from shared.engine.scheduling.block_pool import BlockPool
from shared.engine.scheduling.scheduler import Scheduler
from shared.engine.scheduling.sequence import SequenceSpec
from shared.engine.scheduling.token_rows import as_token_rows
from shared.kv.memory import KVMemory
from shared.model.checkpoint import Checkpoint, kv_layout, max_model_len
from shared.protocol import Attempt, Sampling, Work
from tests.support.models.tiny_model import (
    TINY,
    TINY_GPT2,
    Rows,
    TinyRunner,
    hand_made_batch,
    write_checkpoint,
)
from tests.support.oracles.engine_integrity import check_engine
from tests.support.oracles.prompt_values import TokenValues, values_of

pytestmark = [  # of Triton's interpreter: a loop over a loaded number, rows that nobody reads
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
]

CPU = torch.device("cpu")
TRAITS = DeviceTraits((8, 0), 4)
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "llama": TINY,
    "qwen3": {**TINY, "architectures": ["Qwen3ForCausalLM"]},
    "mistral": {**TINY, "architectures": ["MistralForCausalLM"], "sliding_window": 9},
    "gpt2": TINY_GPT2,
}
MAX_ERROR = 2e-3
"""of logits around 20: float32 sums in another order"""
BLOCK_SIZE = 8
NUM_BLOCKS = 24
FIRST = [(3 * step + 1) % 131 for step in range(19)]
SECOND = [(5 * step * step + 2) % 131 for step in range(6)]


def interpreted(checkpoint: Checkpoint, max_sequences: int = 12) -> DeviceRunner:
    """On the CPU; its pool starts as NaN."""
    config = checkpoint.config
    shape = pool_shape(kv_layout(checkpoint, "float32", BLOCK_SIZE), NUM_BLOCKS)
    with WeightReader(checkpoint, torch.float32, CPU) as reader:
        operations = KernelOperations(CPU, TRAITS)
        model = load_model(config, reader, max_model_len(config, 0), operations)
    return DeviceRunner(
        model,
        torch.full(shape, torch.nan),
        PagedAttention(config.num_heads, config.windows, TRAITS),
        StepInputs(64, max_sequences, NUM_BLOCKS, CPU),
        DecodeGraphs(max_sequences),
        eager=True,
    )


@pytest.mark.parametrize("name", CONFIGS)
def test_prompts_chunks_and_decodes_give_the_cpus_logits(name: str, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, CONFIGS[name])
    ours = interpreted(checkpoint)
    plain = TinyRunner(checkpoint, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE)
    here, there = [4, 1, 9], [7, 2]
    steps = [
        [Rows(FIRST, 0, 8, here), Rows(SECOND, 0, 4, there)],
        [Rows(SECOND, 4, 5, there), Rows(FIRST, 8, 17, here)],  # one decodes next to a chunk
        [Rows(FIRST, 17, 18, here), Rows(SECOND, 5, 6, there)],
        [Rows(FIRST, 18, 19, here)],
    ]
    for number, rows in enumerate(steps):
        batch = hand_made_batch(rows, BLOCK_SIZE, all_rows=False)
        wanted = plain.runner.run(batch)
        for way in (batch, as_token_rows(batch, 64)):
            found = ours.run(way)
            torch.testing.assert_close(found, wanted, rtol=0, atol=MAX_ERROR, msg=str(number))
    ours.kv_pool[9, 0, 1, 0, 0, 0] += 50
    last = hand_made_batch(steps[-1], BLOCK_SIZE, all_rows=False)
    assert not torch.allclose(ours.run(last), wanted, rtol=0, atol=MAX_ERROR)


def test_steps_that_tuning_times_give_the_cpus_logits(tmp_path: Path) -> None:
    """They read a pool that holds nothing, and leave it so."""
    checkpoint = write_checkpoint(tmp_path, TINY)
    ours = interpreted(checkpoint)
    ours.kv_pool.zero_()
    plain = TinyRunner(checkpoint, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE)
    plain.pool.zero_()
    full, num_prompt = full_step(40, 5, 20, 30, NUM_BLOCKS, BLOCK_SIZE)
    assert full.query_lens.tolist() == [1, 1, 1, 30, 7]
    assert num_prompt == 37
    for batch in (decode_step(5, 20, NUM_BLOCKS, BLOCK_SIZE), full):
        wanted = plain.runner.run(batch)
        assert wanted.shape[0] == 5
        torch.testing.assert_close(ours.run(batch), wanted, rtol=0, atol=MAX_ERROR)
    assert not ours.kv_pool.any()


def test_tokens_are_the_cpus_with_the_host_a_step_ahead(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, TINY)
    wanted = _answers(_engine(checkpoint, _plain_runner(checkpoint), Sampler()))
    sampler = DeviceSampler(checkpoint.config.vocab_size, CPU)
    assert _answers(_engine(checkpoint, interpreted(checkpoint), sampler)) == wanted
    assert all(len(tokens) == 5 for tokens in wanted.values())


def test_what_the_host_exercises_changes_no_answer(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, TINY)
    sampler = DeviceSampler(checkpoint.config.vocab_size, CPU)
    runner = interpreted(checkpoint)
    assert runner.exercise() is None, "nothing was computed yet"
    engine = _engine(checkpoint, runner, sampler)
    answers = _answers(engine)
    for _ in range(5):  # more than the sampler has buffers
        engine.next_launch.exercise()
    assert _answers(engine) == answers
    logits = runner.exercise()
    assert logits is not None and logits.shape == (1, checkpoint.config.vocab_size)


def _plain_runner(checkpoint: Checkpoint) -> Runner:
    return TinyRunner(checkpoint, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE).runner


def _engine(checkpoint: Checkpoint, runner: Runner, sampler: TokenSampler) -> Engine:
    memory = KVMemory.create(kv_layout(checkpoint, "float32", BLOCK_SIZE), NUM_BLOCKS)
    scheduler = Scheduler(
        BlockPool(NUM_BLOCKS, BLOCK_SIZE, memory.generations),
        max_num_batched_tokens=16,
        max_num_seqs=5,
        max_model_len=64,
    )
    return Engine(runner, scheduler, sampler, host_pool(memory), "decode")


def _answers(engine: Engine) -> dict[str, list[int]]:
    """Of prompts that share a prefix, chosen in different ways."""
    ways = [
        Sampling(5, temperature=0.0, ignore_eos=True),
        Sampling(5, temperature=0.9, seed=4, ignore_eos=True),
        Sampling(5, temperature=1.0, top_p=0.8, seed=5, ignore_eos=True),
        Sampling(5, temperature=0.0, repetition_penalty=1.6, ignore_eos=True),
    ]
    for number, sampling in enumerate(ways):
        prompt = (*FIRST[: 8 + 3 * number], number)
        attempt = Attempt(str(number), 0)
        engine.add(
            SequenceSpec(Work(attempt, prompt, len(prompt), bytes(32), sampling), (), "full", "agg")
        )
    answers: dict[str, list[int]] = {}
    while engine.has_work:
        for run in engine.step().tokens:
            answers.setdefault(run.rid, []).extend(run.token_ids)
        check_engine(engine)
    return answers


def test_prompts_are_scored_as_on_a_cpu(tmp_path: Path) -> None:
    """In chunks, next to a decode, more rows than are scored at once."""
    checkpoint = write_checkpoint(tmp_path, TINY)
    sampler = DeviceSampler(checkpoint.config.vocab_size, CPU)
    wanted = _scores(_engine(checkpoint, _plain_runner(checkpoint), Sampler()))
    found = _scores(_engine(checkpoint, interpreted(checkpoint), sampler))
    assert [len(values) for values in wanted] == [len(FIRST) - 1, len(SECOND) - 1]
    for ours, theirs in zip(found, wanted, strict=True):
        for mine, other in zip(ours, theirs, strict=True):
            assert mine.logprob == pytest.approx(other.logprob, abs=MAX_ERROR)
            assert mine.top_logprobs == pytest.approx(other.top_logprobs, abs=MAX_ERROR)


def _scores(engine: Engine) -> list[list[TokenValues]]:
    for number, prompt in enumerate((FIRST, SECOND)):
        attempt = Attempt(str(number), 0)
        sampling = Sampling(max_tokens=3, temperature=0.0)
        work = Work(attempt, tuple(prompt), len(prompt), bytes(32), sampling, prompt_logprobs=3)
        engine.add(SequenceSpec.of(work, BLOCK_SIZE, "full", "agg"))
    told = []
    while engine.has_work:
        told += engine.step().scored
    return [
        values_of(piece for attempt, piece in told if attempt.rid == name) for name in ("0", "1")
    ]
