"""Two engine processes on a GPU: blocks go over tcp through host memory, or straight from pool to
pool where they are mapped."""

import asyncio
from pathlib import Path

import pytest
import torch

from shared.protocol import Sampling
from shared.settings.load import changed
from tests.support.models.built_engine import built_engine
from tests.support.models.tiny_model import TINY, write_checkpoint
from tests.support.oracles.agg_answers import agg_answers, make_specs
from tests.support.pairs.engine_pair import EnginePair
from tests.support.settings import settings_with

PROMPTS = [[(7 * step + length) % 131 for step in range(length)] for length in (1, 16, 90, 200)]


@pytest.mark.parametrize("transport", ["auto", "tcp", "mapped"])
def test_answers_equal_those_of_one_engine(transport: str, tmp_path: Path) -> None:
    torch.set_float32_matmul_precision("highest")
    write_checkpoint(tmp_path, TINY)
    settings = settings_with(
        model=str(tmp_path),
        device="cuda",
        dtype="float32",
        kv_blocks=40,
        block_size=16,
        max_num_batched_tokens=80,
        transport=transport,
        transfer_dir=str(tmp_path / "kv"),
    )
    sampling = Sampling(max_tokens=9, temperature=0.0, ignore_eos=True, logprobs=0)
    specs = make_specs(PROMPTS, sampling, 16)
    expected = agg_answers(built_engine(settings, "decode"), specs)

    async def serve() -> EnginePair:
        pair = EnginePair(settings, settings, specs)
        async with asyncio.timeout(120):
            await pair.run()
        return pair

    pair = asyncio.run(serve())
    assert sum(pulled.num_blocks for pulled in pair.pulled) == sum(
        -(-len(prompt) // 16) for prompt in PROMPTS
    )
    for attempt, answer in expected.items():
        assert pair.answers[attempt.rid] == dict(enumerate(token for token, _ in answer))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("over_sockets", [False, True])
def test_blocks_that_nccl_moves_give_the_same_answers(
    over_sockets: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if over_sockets:
        for way in ("P2P", "SHM"):
            monkeypatch.setenv(f"NCCL_{way}_DISABLE", "1")
    torch.set_float32_matmul_precision("highest")
    write_checkpoint(tmp_path, TINY)
    common = settings_with(
        model=str(tmp_path),
        device="cuda:0",
        dtype="float32",
        kv_blocks=40,
        block_size=16,
        max_num_batched_tokens=80,
        transport="nccl",
    )
    sampling = Sampling(max_tokens=9, temperature=0.0, ignore_eos=True, logprobs=0)
    specs = make_specs(PROMPTS, sampling, 16)
    expected = agg_answers(built_engine(common, "decode"), specs)

    async def serve() -> EnginePair:
        pair = EnginePair(common, changed(common, device="cuda:1"), specs)
        async with asyncio.timeout(120):
            await pair.run()
        return pair

    pair = asyncio.run(serve())
    assert {pulled.transport for pulled in pair.pulled} == {"nccl"}
    for attempt, answer in expected.items():
        assert pair.answers[attempt.rid] == dict(enumerate(token for token, _ in answer))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize(("prefill_tp", "decode_tp"), [(2, 1), (1, 2), (2, 2)])
def test_answers_do_not_depend_on_how_workers_split_the_model(
    prefill_tp: int, decode_tp: int, tmp_path: Path
) -> None:
    torch.set_float32_matmul_precision("highest")
    write_checkpoint(tmp_path, {**TINY, "num_attention_heads": 8, "intermediate_size": 256})
    common = settings_with(
        model=str(tmp_path),
        device="cuda:0",
        dtype="float32",
        kv_blocks=40,
        block_size=16,
        max_num_batched_tokens=80,
        transfer_dir=str(tmp_path / "kv"),
    )
    sampling = Sampling(max_tokens=9, temperature=0.0, ignore_eos=True, logprobs=0)
    specs = make_specs(PROMPTS, sampling, 16)
    expected = agg_answers(built_engine(common, "decode"), specs)

    async def serve() -> EnginePair:
        pair = EnginePair(changed(common, tp=prefill_tp), changed(common, tp=decode_tp), specs)
        async with asyncio.timeout(200):
            await pair.run()
        return pair

    pair = asyncio.run(serve())
    for attempt, answer in expected.items():
        assert pair.answers[attempt.rid] == dict(enumerate(token for token, _ in answer))
