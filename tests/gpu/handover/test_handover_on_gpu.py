"""Two engine processes on a GPU: blocks go over tcp through host memory, or straight from pool to
pool where they are mapped."""

import asyncio
from pathlib import Path

import pytest
import torch

from shared.mover.agent import is_installed
from shared.protocol import Sampling
from shared.settings.groups import Settings
from shared.settings.load import changed
from tests.support.models.built_engine import built_engine
from tests.support.models.tiny_model import TINY, write_checkpoint
from tests.support.oracles.agg_answers import agg_answers, make_specs
from tests.support.pairs.engine_pair import EnginePair
from tests.support.settings import settings_with

PROMPTS = [[(7 * step + length) % 131 for step in range(length)] for length in (1, 16, 90, 200)]
SHAPE = {"dtype": "float32", "kv_blocks": 40, "block_size": 16, "max_num_batched_tokens": 80}


@pytest.fixture(autouse=True)
def exact() -> None:
    torch.set_float32_matmul_precision("highest")


def served(prefill: Settings, decode: Settings, limit_s: float = 120) -> EnginePair:
    """The pair, once it has answered every prompt as one engine does."""
    sampling = Sampling(max_tokens=9, temperature=0.0, ignore_eos=True, logprobs=0)
    specs = make_specs(PROMPTS, sampling, 16)
    expected = agg_answers(built_engine(changed(prefill, tp=1), "decode"), specs)

    async def serve() -> EnginePair:
        pair = EnginePair(prefill, decode, specs)
        async with asyncio.timeout(limit_s):
            await pair.run()
        return pair

    pair = asyncio.run(serve())
    for attempt, answer in expected.items():
        assert pair.answers[attempt.rid] == dict(enumerate(token for token, _ in answer))
    return pair


@pytest.mark.parametrize("transport", ["auto", "tcp", "mapped"])
def test_answers_equal_those_of_one_engine(transport: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TINY)
    settings = settings_with(
        model=str(tmp_path),
        device="cuda",
        transport=transport,
        transfer_dir=str(tmp_path / "kv"),
        **SHAPE,
    )
    pair = served(settings, settings)
    assert sum(pulled.num_blocks for pulled in pair.pulled) == sum(
        -(-len(prompt) // 16) for prompt in PROMPTS
    )


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
    write_checkpoint(tmp_path, TINY)
    prefill = settings_with(model=str(tmp_path), device="cuda:0", transport="nccl", **SHAPE)
    pair = served(prefill, changed(prefill, device="cuda:1"))
    assert {pulled.transport for pulled in pair.pulled} == {"nccl"}


@pytest.mark.skipif(not is_installed(), reason="needs nixl")
def test_blocks_that_nixl_reads_give_the_same_answers(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TINY)
    prefill = settings_with(model=str(tmp_path), device="cuda:0", transport="nixl", **SHAPE)
    last = torch.cuda.device_count() - 1
    pair = served(prefill, changed(prefill, device=f"cuda:{last}"))
    assert {pulled.transport for pulled in pair.pulled} == {"nixl"}


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize(("prefill_tp", "decode_tp"), [(2, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize("transport", ["auto", "nixl"])
def test_answers_do_not_depend_on_how_workers_split_the_model(
    transport: str, prefill_tp: int, decode_tp: int, tmp_path: Path
) -> None:
    if transport == "nixl" and not is_installed():
        pytest.skip("needs nixl")
    write_checkpoint(tmp_path, {**TINY, "num_attention_heads": 8, "intermediate_size": 256})
    common = settings_with(
        model=str(tmp_path),
        device="cuda:0",
        transport=transport,
        transfer_dir=str(tmp_path / "kv"),
        **SHAPE,
    )
    served(changed(common, tp=prefill_tp), changed(common, tp=decode_tp), limit_s=200)
