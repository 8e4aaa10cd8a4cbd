"""Greedy answers of the engine, batched and chunked, against transformers on each prompt alone."""

import json
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from shared.engine.engine import Engine
from shared.engine.layers import matrices as layers
from shared.engine.scheduling.sequence import SequenceSpec
from shared.protocol import Attempt, Sampling, Work
from tests.support.models.built_engine import built_engine
from tests.support.oracles.engine_integrity import check_engine
from tests.support.oracles.transformers_oracle import (
    VOCAB_SIZE,
    Answer,
    Case,
    oracle_answer,
    random_oracle,
)
from tests.support.settings import settings_with

BLOCK_SIZE = 16
CHUNK = 80
NUM_TOKENS = 64
MIN_GAP = 1e-4
MAX_LOGPROB_ERROR = 1e-4
MIN_DISTINCT = 20
MAX_SEED = 99
LENGTHS = (1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 79, 80, 81, 127, 128, 129, 161, 200)
"""around the borders of blocks (16), attention tiles (64), chunks (80), windows (16, 33, 64, 80)
and original rope lengths (64, 128)"""


def rope(kind: str, **fields: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 500000.0, **fields}}


LLAMA3 = rope(
    "llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
)
YARN = rope("yarn", factor=4.0, original_max_position_embeddings=128)
YARN_TUNED = rope(
    "yarn",
    factor=8.0,
    original_max_position_embeddings=64,
    mscale=0.9,
    mscale_all_dim=0.4,
    beta_fast=20.0,
    beta_slow=2.0,
    truncate=False,
)
YARN_SHARP = rope("yarn", factor=8.0, original_max_position_embeddings=64, attention_factor=1.1)
LINEAR = {**rope("linear", factor=4.0), "max_position_embeddings": 128}
DYNAMIC = rope("dynamic", factor=4.0)
STRETCHED = {**DYNAMIC, "max_position_embeddings": 128}

CASES = {
    "llama-tied-old-form": Case("llama", {"tie_word_embeddings": True}, old_form=True),
    "llama3-rope-sharded": Case("llama", LLAMA3, shards=True),
    "llama3-rope-old-form": Case("llama", {**LLAMA3, "num_key_value_heads": 1}, old_form=True),
    "llama-biased-mha": Case(
        "llama", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4}
    ),
    "mistral-window-sharded": Case("mistral", {"sliding_window": 80}, shards=True),
    "mistral-narrow-old-form": Case(
        "mistral", {"sliding_window": 16, "head_dim": 32}, old_form=True
    ),
    "mistral-without-window": Case(
        "mistral", {**LINEAR, "sliding_window": None}, max_model_len=512
    ),
    "qwen2-tied-old-form": Case(
        "qwen2",
        {"tie_word_embeddings": True, "sliding_window": 8, "max_window_layers": 0},
        old_form=True,
    ),
    "qwen2-upper-layers-slide": Case(
        "qwen2",
        {
            "use_sliding_window": True,
            "sliding_window": 64,
            "max_window_layers": 1,
            "num_hidden_layers": 3,
        },
        old_form=True,
        shards=True,
    ),
    "qwen3-tied": Case("qwen3", {"tie_word_embeddings": True, "head_dim": 32}, seed=3),
    "qwen3-old-form-sharded": Case("qwen3", {}, old_form=True, shards=True),
    "qwen3-lower-layer-slides": Case(
        "qwen3",
        {
            "use_sliding_window": True,
            "sliding_window": 33,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "gpt2": Case("gpt2", seed=1),
    "gpt2-old-form": Case("gpt2", {"n_inner": 100}, old_form=True, seed=10),
    "gpt2-untied-sharded": Case(
        "gpt2",
        {"tie_word_embeddings": False, "scale_attn_by_inverse_layer_idx": True},
        shards=True,
        seed=2,
    ),
    "linear-rope-old-form": Case("llama", LINEAR, old_form=True, max_model_len=512),
    "dynamic-rope-within": Case("qwen2", DYNAMIC),
    "dynamic-rope-beyond": Case("llama", STRETCHED, max_model_len=512, our_frequencies=True),
    "dynamic-rope-beyond-old-form": Case(
        "qwen3", STRETCHED, old_form=True, max_model_len=512, our_frequencies=True
    ),
    "yarn-rope-sharded": Case("qwen2", {**YARN, "max_position_embeddings": 128}, shards=True),
    "yarn-rope-old-form": Case("llama", YARN_TUNED, old_form=True),
    "yarn-rope-sharp": Case("qwen3", YARN_SHARP, seed=1),
}


@dataclass(frozen=True)
class Prepared:
    """A saved checkpoint, what transformers answers on it, and what the engine does."""

    path: Path
    prompts: list[list[int]]
    answers: list[Answer]
    ours: list[Answer]
    num_replaced: int


Prepare = Callable[[str], Prepared]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepare]:
    """Of a case, made when it is first asked for."""

    @cache
    def prepare(name: str) -> Prepared:
        path = tmp_path_factory.mktemp(name)
        return _prepare(CASES[name], path)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield prepare
    torch.set_num_threads(threads)


def test_few_prompts_were_replaced(prepared: Prepare) -> None:
    num_replaced = sum(prepared(name).num_replaced for name in CASES)
    num_drawn = num_replaced + len(LENGTHS) * len(CASES)
    sys.stdout.write(f"{num_replaced} of {num_drawn} prompts replaced\n")
    assert num_replaced < 0.05 * num_drawn


@pytest.mark.parametrize("name", CASES)
def test_greedy_tokens_and_logprobs_equal_transformers(name: str, prepared: Prepare) -> None:
    item = prepared(name)
    for prompt, expected, found in zip(item.prompts, item.answers, item.ours, strict=True):
        assert len(set(expected.token_ids)) >= MIN_DISTINCT
        assert found.token_ids == expected.token_ids, f"prompt of {len(prompt)} tokens"
        worst = max(
            abs(mine - theirs)
            for mine, theirs in zip(found.logprobs, expected.logprobs, strict=True)
        )
        assert worst <= MAX_LOGPROB_ERROR, f"prompt of {len(prompt)} tokens"


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama-tied-old-form", {"rope_theta": 11000.0}),
        ("mistral-window-sharded", {"sliding_window": 81}),
        ("mistral-window-sharded", {"sliding_window": 79}),
        ("qwen2-upper-layers-slide", {"max_window_layers": 2}),
        ("qwen3-lower-layer-slides", {"layer_types": ["full_attention", "sliding_attention"]}),
        ("gpt2-untied-sharded", {"scale_attn_by_inverse_layer_idx": False}),
        ("gpt2", {"layer_norm_epsilon": 1e-2}),
        ("yarn-rope-sharp", {"rope_parameters": YARN_TUNED["rope_parameters"]}),
    ],
)
def test_another_config_is_noticed(
    name: str, changes: dict[str, Any], prepared: Prepare, tmp_path: Path
) -> None:
    item = prepared(name)
    shutil.copytree(item.path, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert config != config | changes
    (tmp_path / "config.json").write_text(json.dumps(config | changes), encoding="utf-8")
    assert _differs(item, _engine(tmp_path))


@pytest.mark.parametrize("name", ["qwen2-tied-old-form", "gpt2", "llama-biased-mha"])
def test_dropped_biases_are_noticed(
    name: str, prepared: Prepare, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = prepared(name)
    monkeypatch.setattr(
        layers.Linear, "__call__", lambda self, rows: torch.nn.functional.linear(rows, self.weight)
    )
    assert _differs(item, _engine(item.path))


def test_a_dynamic_base_for_another_length_is_noticed(prepared: Prepare) -> None:
    item = prepared("dynamic-rope-beyond")
    assert _differs(item, _engine(item.path, 400))


def _differs(item: Prepared, engine: Engine) -> bool:
    """Whether any of the shorter prompts is answered otherwise; lengths to 81 cross all."""
    num_asked = LENGTHS.index(81) + 1
    ours = _engine_answers(engine, item.prompts[:num_asked])
    return any(
        mine.token_ids != theirs.token_ids
        for mine, theirs in zip(ours, item.answers[:num_asked], strict=True)
    )


def _engine(path: Path, max_model_len: int = 0) -> Engine:
    settings = settings_with(
        model=str(path),
        device="cpu",
        block_size=BLOCK_SIZE,
        kv_blocks=200,
        max_model_len=max_model_len,
        max_num_batched_tokens=CHUNK,
        max_num_seqs=8,
    )
    return built_engine(settings, "decode")


def _prepare(case: Case, path: Path) -> Prepared:
    """One prompt per length whose answer does not hang on a rounding error. What the engine says
    is the oracle's guess, which cannot change the oracle's answers."""
    oracle = random_oracle(case, path)
    seeds = dict.fromkeys(LENGTHS, 0)
    while True:
        prompts = [_prompt(length, seed) for length, seed in seeds.items()]
        ours = _engine_answers(_engine(path, case.max_model_len), prompts)
        answers = [
            oracle_answer(oracle, prompt, NUM_TOKENS, mine.token_ids)
            for prompt, mine in zip(prompts, ours, strict=True)
        ]
        unclear = [
            length
            for length, answer in zip(LENGTHS, answers, strict=True)
            if answer.smallest_gap < MIN_GAP and seeds[length] < MAX_SEED
        ]
        if not unclear:
            return Prepared(path, prompts, answers, ours, sum(seeds.values()))
        seeds |= {length: seeds[length] + 1 for length in unclear}


def _prompt(length: int, seed: int) -> list[int]:
    numbers = random.Random(1000 * length + seed)  # noqa: S311
    return [numbers.randrange(VOCAB_SIZE) for _ in range(length)]


def _engine_answers(engine: Engine, prompts: list[list[int]]) -> list[Answer]:
    """All prompts at once through the real step loop."""
    root = bytes(32)
    answers = [Answer([], []) for _ in prompts]
    for number, prompt in enumerate(prompts):
        sampling = Sampling(max_tokens=NUM_TOKENS, temperature=0, logprobs=0)
        work = Work(Attempt(str(number), 0), tuple(prompt), len(prompt), root, sampling)
        engine.add(SequenceSpec.of(work, BLOCK_SIZE, "full", "agg"))
    while engine.has_work:
        for run in engine.step().tokens:
            answer = answers[int(run.rid)]
            answer.token_ids.extend(run.token_ids)
            answer.logprobs.extend(item.logprob for item in run.logprobs)
    check_engine(engine)
    return answers
