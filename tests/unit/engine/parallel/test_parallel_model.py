"""Two and four ranks answer as one does: every family, every way KV heads fall on ranks."""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from shared.engine.engine import Engine
from shared.engine.layers.weights import WeightReader
from shared.engine.scheduling.sequence import SequenceSpec
from shared.errors import ModelError
from shared.kv.block_hash import chain_hashes
from shared.model.checkpoint import load_checkpoint
from shared.protocol import Attempt, Sampling, Work
from tests.support.fakes.thread_ranks import lead_threads
from tests.support.models.built_engine import built_engine
from tests.support.models.tiny_model import STD, TINY, TINY_GPT2, write_checkpoint
from tests.support.oracles.engine_integrity import check_engine
from tests.support.settings import settings_with

ROOT = bytes(32)
BLOCK_SIZE = 8
LLAMA = {**TINY, "num_attention_heads": 8, "num_key_value_heads": 4}
MODELS: Mapping[str, Mapping[str, Any]] = {
    "llama-4-kv-heads": LLAMA,
    "llama-2-kv-heads": {**LLAMA, "num_key_value_heads": 2},
    "llama-1-kv-head": {**LLAMA, "num_key_value_heads": 1},
    "llama-biases": {**LLAMA, "attention_bias": True, "mlp_bias": True},
    "qwen3": {**LLAMA, "architectures": ["Qwen3ForCausalLM"], "tie_word_embeddings": True},
    "qwen2": {**LLAMA, "architectures": ["Qwen2ForCausalLM"], "num_key_value_heads": 2},
    "gpt2": {**TINY_GPT2, "n_embd": 128, "n_head": 8},
}


@pytest.fixture(autouse=True)
def threads_for_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr("shared.engine.build.lead", lead_threads)


def _engine(path: Path, size: int, **changes: Any) -> Engine:
    settings = settings_with(
        model=str(path),
        device="cpu",
        tp=size,
        block_size=BLOCK_SIZE,
        max_model_len=128,
        **{"kv_blocks": 64, "max_num_batched_tokens": 24, "max_num_seqs": 4, **changes},
    )
    return built_engine(settings, "decode")


def _specs(num_prompts: int = 6, num_tokens: int = 12) -> list[SequenceSpec]:
    """Prompts of which some share a beginning; the longest need several steps."""
    numbers = random.Random(0)  # noqa: S311
    common = [numbers.randrange(2, 131) for _ in range(40)]
    specs = []
    for number in range(num_prompts):
        own = [numbers.randrange(2, 131) for _ in range(5 + 9 * number)]
        prompt = tuple(common[: 20 * (number % 3)] + own)
        hashes = tuple(chain_hashes(ROOT, prompt, BLOCK_SIZE))
        sampling = Sampling(max_tokens=num_tokens, temperature=0.0, ignore_eos=True)
        attempt = Attempt(f"r{number}", 0)
        specs.append(
            SequenceSpec(Work(attempt, prompt, len(prompt), ROOT, sampling), hashes, "full", "agg")
        )
    return specs


def _answers(engine: Engine) -> dict[Attempt, list[int]]:
    answers: dict[Attempt, list[int]] = {}
    for spec in _specs():
        engine.add(spec)
    while engine.has_work:
        for run in engine.step().tokens:
            answers.setdefault(run.attempt, []).extend(run.token_ids)
    return answers


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", MODELS)
def test_ranks_answer_token_for_token_as_one_does(name: str, size: int, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, MODELS[name])
    expected = _answers(_engine(tmp_path, 1))
    engine = _engine(tmp_path, size)
    answers = _answers(engine)
    check_engine(engine)
    assert len({tuple(tokens) for tokens in expected.values()}) == len(expected)
    assert answers == expected
    assert engine.counters.prefix_hit_tokens > 0
    assert engine.counters.steps > 20


def test_preempted_sequences_too(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, LLAMA)
    expected = _answers(_engine(tmp_path, 1))
    engine = _engine(tmp_path, 2, kv_blocks=14)
    assert _answers(engine) == expected
    assert engine.counters.preemptions > 0


def test_a_wrong_weight_of_one_rank_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(tmp_path, LLAMA)
    expected = _answers(_engine(tmp_path, 1))
    linear = WeightReader.linear

    def off_by_one(reader: WeightReader, name: str, *arguments: Any, **options: Any) -> Any:
        read = linear(reader, name, *arguments, **options)
        if reader.shard.rank == 1 and name.endswith("layers.1.mlp.down_proj"):
            read.weight[0, 0] += 20 * STD
        return read

    monkeypatch.setattr(WeightReader, "linear", off_by_one)
    assert _answers(_engine(tmp_path, 2)) != expected


@pytest.mark.parametrize(
    ("change", "size", "problem"),
    [
        ({"num_attention_heads": 6, "num_key_value_heads": 6}, 4, "6 attention heads"),
        ({"intermediate_size": 202}, 4, "202 MLP columns"),
        ({"num_attention_heads": 6, "num_key_value_heads": 3}, 2, "3 KV heads"),
    ],
)
def test_a_model_that_cannot_be_split_is_refused(
    change: dict[str, Any], size: int, problem: str, tmp_path: Path
) -> None:
    write_checkpoint(tmp_path, {**LLAMA, **change})
    with pytest.raises(ModelError, match=problem):
        _engine(tmp_path, size)


def test_the_layout_is_the_same_for_any_number_of_ranks(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, MODELS["llama-2-kv-heads"])
    engines = {size: _engine(tmp_path, size) for size in (1, 2, 4)}
    assert len({engine.memory.layout.fingerprint() for engine in engines.values()}) == 1
    pools = [engine.kv_pool.tensor for engine in engines.values()]
    assert [pool.shape[3] for pool in pools] == [2, 1, 1]


def test_a_rank_reads_only_its_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = load_checkpoint(str(write_checkpoint(tmp_path, LLAMA).path))
    num_read = dict.fromkeys((1, 2, 4), 0)
    raw = WeightReader._raw

    def counting(reader: WeightReader, *arguments: Any) -> torch.Tensor:
        read = raw(reader, *arguments)
        if "layers" in arguments[0] and "norm" not in arguments[0]:
            num_read[reader.shard.size] += read.numel()
        return read

    monkeypatch.setattr(WeightReader, "_raw", counting)
    for size in num_read:
        _engine(checkpoint.path, size)
    # Summed over the ranks: every byte once.
    assert len(set(num_read.values())) == 1
