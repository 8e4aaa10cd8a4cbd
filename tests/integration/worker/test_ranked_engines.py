"""Engines whose ranks share a model hand KV over to engines of any number of ranks."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shared.protocol import Sampling
from shared.settings.groups import Settings
from shared.settings.load import changed
from tests.support.models.built_engine import built_engine
from tests.support.models.tiny_model import TINY, write_checkpoint
from tests.support.oracles.agg_answers import agg_answers, make_specs
from tests.support.oracles.prompt_values import TokenValues, values_of
from tests.support.pairs.engine_pair import EnginePair
from tests.support.settings import settings_with

BLOCK_SIZE = 16
PROMPTS = [
    [(7 * step + length) % 131 for step in range(length)] for length in (1, 16, 17, 90, 127, 200)
]
LLAMA = {**TINY, "num_attention_heads": 8, "num_key_value_heads": 2, "num_hidden_layers": 4}
MODELS = {"2 KV heads": LLAMA, "1 KV head": {**LLAMA, "num_key_value_heads": 1}}


def _settings(path: Path, tp: int, **more: Any) -> Settings:
    return settings_with(
        model=str(path),
        device="cpu",
        threads=1,
        tp=tp,
        kv_blocks=40,
        block_size=BLOCK_SIZE,
        max_num_batched_tokens=80,
        transfer_dir=str(path / "kv"),
        **more,
    )


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("model", "prefill", "decode"),
    [
        ("2 KV heads", 1, 2),
        ("2 KV heads", 2, 1),
        ("2 KV heads", 2, 2),
        ("1 KV head", 2, 1),
        ("1 KV head", 1, 2),
    ],
)
@pytest.mark.parametrize("transport", ["mapped", "tcp", "nixl"])
def test_answers_equal_those_of_one_engine(
    transport: str,
    model: str,
    prefill: int,
    decode: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("m")  # short, for the paths of sockets
    write_checkpoint(path, MODELS[model])
    greedy = Sampling(max_tokens=9, temperature=0.0, ignore_eos=True, logprobs=0)
    drawn = Sampling(max_tokens=9, temperature=1.0, seed=3, ignore_eos=True, logprobs=0)
    specs = [
        replace(spec, work=replace(spec.work, sampling=drawn if number % 2 else greedy))
        for number, spec in enumerate(make_specs(PROMPTS, greedy, BLOCK_SIZE))
    ]
    expected = agg_answers(built_engine(_settings(path, 1), "decode"), specs)

    async def serve() -> EnginePair:
        source = _settings(path, prefill, transport=transport)
        pair = EnginePair(source, changed(source, tp=decode), specs)
        async with asyncio.timeout(120):
            await pair.run()
        return pair

    pair = asyncio.run(serve())
    assert sum(pulled.num_blocks for pulled in pair.pulled) == sum(
        -(-len(prompt) // BLOCK_SIZE) for prompt in PROMPTS
    )
    assert {pulled.transport for pulled in pair.pulled} == {transport}
    for attempt, answer in expected.items():
        assert pair.answers[attempt.rid] == dict(enumerate(token for token, _ in answer))


def test_ranks_score_a_prompt_together(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, LLAMA)
    alone, together = (_scored(_settings(tmp_path, tp)) for tp in (1, 2))
    assert len(alone) == len(PROMPTS[-1]) - 1
    for mine, theirs in zip(together, alone, strict=True):
        assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-4)
        assert mine.top_logprobs == pytest.approx(theirs.top_logprobs, abs=1e-4)


def _scored(settings: Settings) -> list[TokenValues]:
    engine = built_engine(settings, "decode")
    greedy = Sampling(max_tokens=2, temperature=0.0, ignore_eos=True)
    (spec,) = make_specs(PROMPTS[-1:], greedy, BLOCK_SIZE)
    engine.add(replace(spec, work=replace(spec.work, prompt_logprobs=3)))
    told = []
    while engine.has_work:
        told += [piece for _, piece in engine.step().scored]
    return values_of(told)
