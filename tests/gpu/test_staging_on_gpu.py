"""A hand-over between two pools in GPU memory, through host memory."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from shared.engine.handover.staging import HostStaging
from shared.engine.layers.kv_cache import device_pool
from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory
from shared.protocol import Sampling
from shared.settings.groups import Settings
from tests.support.models.built_engine import built_engine
from tests.support.models.tiny_model import TINY, write_checkpoint
from tests.support.pairs.staged_pair import (
    PdPair,
    StagedEngine,
    agg_answers,
    build_pair,
    make_specs,
)
from tests.support.settings import settings_with

LAYOUT = KVLayout("big", "bfloat16", 32, 2, 8, 128, 16)
"""2 MiB a block"""


@pytest.fixture(autouse=True)
def full_float32() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def make_prompts() -> list[list[int]]:
    numbers = random.Random(0)  # noqa: S311
    prompts = [
        [numbers.randrange(131) for _ in range(length)]
        for length in (1, 15, 16, 17, 63, 80, 81, 130, 200)
    ]
    return prompts + [[*prompts[-1][:shared], 7] for shared in (32, 128, 160)] + prompts[4:7]


def make_settings(path: Path) -> Settings:
    write_checkpoint(path, TINY)
    return settings_with(
        model=str(path),
        device="cuda",
        dtype="float32",
        kv_blocks=40,
        block_size=16,
        max_num_batched_tokens=80,
    )


def test_pd_equals_agg(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    sampling = Sampling(max_tokens=9, temperature=0.0, ignore_eos=True, logprobs=0)
    specs = make_specs(make_prompts(), sampling, 16)
    expected = agg_answers(built_engine(settings, "decode"), specs)
    pair = PdPair(*build_pair(settings))
    answers = asyncio.run(pair.run(specs))
    for attempt, answer in expected.items():
        assert [token for token, _ in answers[attempt]] == [token for token, _ in answer]
    assert pair.num_pulled_blocks > 40 and pair.num_different_blocks == 0
    assert pair.d.engine.counters.prompt_tokens_computed == 0


def test_engines_are_built_with_a_host_block_for_each_of_theirs(tmp_path: Path) -> None:
    """What `baton up` builds: no pool of the test's own."""
    settings = make_settings(tmp_path)
    engines = [built_engine(settings, "prefill"), built_engine(settings, "decode")]
    assert [engine.memory.num_blocks for engine in engines] == [40, 40]
    sampling = Sampling(max_tokens=5, temperature=0.0, ignore_eos=True, logprobs=0)
    specs = make_specs(make_prompts()[4:8], sampling, 16)
    expected = agg_answers(built_engine(settings, "decode"), specs)
    blind = torch.zeros(40, 1)
    pair = PdPair(StagedEngine(engines[0], blind), StagedEngine(engines[1], blind))
    answers = asyncio.run(pair.run(specs))
    assert {attempt: [token for token, _ in answer] for attempt, answer in answers.items()} == {
        attempt: [token for token, _ in answer] for attempt, answer in expected.items()
    }


def test_published_means_that_the_gpu_is_done() -> None:
    memory = KVMemory.create(LAYOUT, 20)
    kv_pool = device_pool(LAYOUT, 20, torch.device("cuda"))
    staging = HostStaging(memory, kv_pool)
    for block in range(20):
        memory.generations[block] += 1
    wanted = torch.randn(kv_pool.shape).to(kv_pool.dtype)
    arrived = wanted.cuda()
    block_ids = random.Random(1).sample(range(20), 20)  # noqa: S311
    busy = torch.full((8192, 8192), 2**-13, device="cuda")
    torch.cuda.synchronize()
    for _ in range(5):  # about a tenth of a second
        busy = busy @ busy
    kv_pool.copy_(arrived)
    mark = staging.mark()
    for part in staging.parts(block_ids):
        copied = staging.publish(part, mark)
    assert not copied.done()  # nobody waited here
    copied.result()
    bits = wanted.flatten(1).view(torch.int16)
    assert all(memory.block(block) == bits[block].numpy().tobytes() for block in range(20))


def test_adopted_means_that_the_next_kernel_sees_it() -> None:
    """Although a step that was in flight wrote the same blocks, for their owner before."""
    memory = KVMemory.create(LAYOUT, 20)
    kv_pool = device_pool(LAYOUT, 20, torch.device("cuda"))
    staging = HostStaging(memory, kv_pool)
    wanted = torch.randn(kv_pool.shape).to(kv_pool.dtype)
    bits = wanted.flatten(1).view(torch.int16)
    for block in range(20):
        memory.block(block)[:] = bits[block].numpy().tobytes()
    busy = torch.full((8192, 8192), 2**-13, device="cuda")
    torch.cuda.synchronize()
    for _ in range(5):  # about a tenth of a second
        busy = busy @ busy
    kv_pool[3:].fill_(7)
    mark = staging.mark()
    for part in staging.parts(range(3, 20)):
        copied = staging.adopt(part, mark)
    assert not copied.done()
    copied.result()
    seen = kv_pool.clone()
    assert torch.equal(seen[3:].cpu(), wanted[3:])
    assert not seen[:3].any()
