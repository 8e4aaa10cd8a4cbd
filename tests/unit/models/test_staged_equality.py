"""pd through a staged pool answers as one engine alone: tokens, logprobs and KV, bit for bit."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from shared.protocol import Sampling
from tests.support.models.built_engine import built_engine
from tests.support.models.tiny_model import TINY, write_checkpoint
from tests.support.pairs.staged_pair import PdPair, agg_answers, build_pair, make_specs
from tests.support.settings import settings_with

BLOCK_SIZE = 16


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make_prompts(seed: int) -> list[list[int]]:
    """Lengths on, before and behind block and chunk borders; the last ones share prefixes."""
    numbers = random.Random(seed)  # noqa: S311
    prompts = [
        [numbers.randrange(131) for _ in range(length)]
        for length in (1, 15, 16, 17, 63, 80, 81, 130, 200)
    ]
    return prompts + [[*prompts[-1][:shared], 7] for shared in (32, 128, 160)] + prompts[4:7]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_pd_equals_agg(temperature: float, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TINY)
    settings = settings_with(
        model=str(tmp_path),
        device="cpu",
        dtype="float32",
        kv_blocks=40,
        block_size=BLOCK_SIZE,
        max_num_batched_tokens=80,
    )
    sampling = Sampling(max_tokens=9, temperature=temperature, ignore_eos=True, logprobs=5)
    specs = make_specs(make_prompts(0), sampling, BLOCK_SIZE)
    expected = agg_answers(built_engine(settings, "decode"), specs)
    pair = PdPair(*build_pair(settings))
    assert asyncio.run(pair.run(specs)) == expected
    assert pair.num_pulled_blocks > 40 and pair.num_different_blocks == 0
    assert pair.d.engine.counters.prompt_tokens_computed == 0
    for staged in (pair.p, pair.d):
        staged.engine.check_integrity()
