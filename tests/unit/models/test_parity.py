"""Greedy answers of the engine, batched and chunked, against transformers on each prompt alone."""

import json
import random
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from shared.block_hash import chain_hashes
from shared.engine.build import build_engine
from shared.engine.engine import Engine
from shared.engine.sequence import SequenceSpec
from shared.protocol import Attempt, Sampling
from shared.settings import Settings

BLOCK_SIZE = 16
CHUNK = 80
NUM_TOKENS = 64
MIN_GAP = 1e-4
MAX_LOGPROB_ERROR = 1e-4
MIN_DISTINCT = 20
LENGTHS = (1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 79, 80, 81, 127, 128, 129, 161, 200)
"""around the borders of blocks (16), attention tiles (64) and chunks (80)"""
VOCAB_SIZE = 512
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@dataclass(frozen=True)
class Case:
    """One checkpoint to compare on."""

    family: str
    overrides: dict[str, Any]
    old_form: bool = False
    shards: bool = False


CASES = {
    "llama-tied-old-form": Case("llama", {"tie_word_embeddings": True}, old_form=True),
    "llama3-rope-sharded": Case("llama", {"rope_parameters": LLAMA3_ROPE}, shards=True),
    "llama3-rope-old-form": Case(
        "llama", {"rope_parameters": LLAMA3_ROPE, "num_key_value_heads": 1}, old_form=True
    ),
    "llama-biased-mha": Case(
        "llama", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4}
    ),
    "qwen3-tied": Case("qwen3", {"tie_word_embeddings": True, "head_dim": 32}),
    "qwen3-old-form-sharded": Case("qwen3", {}, old_form=True, shards=True),
}


@dataclass(frozen=True)
class Answer:
    """What greedy decoding gave."""

    token_ids: list[int]
    logprobs: list[float]
    smallest_gap: float = 0.0
    """between the two best logits, over all positions"""


@dataclass(frozen=True)
class Prepared:
    """A saved checkpoint and what transformers answers on it."""

    path: Path
    prompts: list[list[int]]
    answers: list[Answer]
    num_replaced: int


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Prepared]:
    torch.set_num_threads(1)
    found = {}
    for name, case in CASES.items():
        path = tmp_path_factory.mktemp(name)
        oracle = _oracle_model(case, path)
        found[name] = Prepared(path, *_clear_prompts(oracle))
    return found


def test_few_prompts_were_replaced(prepared: dict[str, Prepared]) -> None:
    num_replaced = sum(item.num_replaced for item in prepared.values())
    num_drawn = num_replaced + len(LENGTHS) * len(CASES)
    sys.stdout.write(f"{num_replaced} of {num_drawn} prompts replaced\n")
    assert num_replaced < 0.05 * num_drawn


@pytest.mark.parametrize("name", CASES)
def test_greedy_tokens_and_logprobs_equal_transformers(
    name: str, prepared: dict[str, Prepared]
) -> None:
    case = prepared[name]
    ours = _engine_answers(_engine(case.path), case.prompts)
    for prompt, expected, found in zip(case.prompts, case.answers, ours, strict=True):
        assert len(set(expected.token_ids)) >= MIN_DISTINCT
        assert found.token_ids == expected.token_ids, f"prompt of {len(prompt)} tokens"
        worst = max(
            abs(mine - theirs)
            for mine, theirs in zip(found.logprobs, expected.logprobs, strict=True)
        )
        assert worst <= MAX_LOGPROB_ERROR, f"prompt of {len(prompt)} tokens"


def test_another_rotary_base_is_noticed(prepared: dict[str, Prepared], tmp_path: Path) -> None:
    case = prepared["llama-tied-old-form"]
    shutil.copytree(case.path, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    config["rope_theta"] *= 1.1
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    ours = _engine_answers(_engine(tmp_path), case.prompts)
    assert [item.token_ids for item in ours] != [item.token_ids for item in case.answers]


def _engine(path: Path) -> Engine:
    settings = Settings(
        model=str(path),
        device="cpu",
        block_size=BLOCK_SIZE,
        kv_blocks=200,
        max_num_batched_tokens=CHUNK,
        max_num_seqs=8,
    )
    return build_engine(settings, "decode")


def _oracle_model(case: Case, path: Path) -> Any:
    """A random model, saved to `path` in the wanted form."""
    config_type, model_type = {
        "llama": (LlamaConfig, LlamaForCausalLM),
        "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    }[case.family]
    arguments: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 136,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.2,
        "tie_word_embeddings": False,
        "head_dim": 16,
    }
    config = config_type(**arguments | case.overrides)
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = model_type(config).eval()
    for parameter_name, parameter in model.named_parameters():
        if "norm" in parameter_name or "bias" in parameter_name:
            torch.nn.init.normal_(parameter, mean=float("norm" in parameter_name), std=0.2)
    model.save_pretrained(path, max_shard_size="150KB" if case.shards else "1GB")
    assert (path / "model.safetensors.index.json").exists() == case.shards
    if case.old_form:
        _rewrite_in_old_form(path / "config.json")
    return model


def _rewrite_in_old_form(path: Path) -> None:
    """config.json as transformers 4 wrote it."""
    config = json.loads(path.read_text(encoding="utf-8"))
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps(config), encoding="utf-8")


def _clear_prompts(oracle: Any) -> tuple[list[list[int]], list[Answer], int]:
    """One prompt per length whose answer does not hang on a rounding error."""
    prompts, answers, num_replaced = [], [], 0
    for length in LENGTHS:
        for seed in range(100):
            numbers = random.Random(1000 * length + seed)  # noqa: S311
            prompt = [numbers.randrange(VOCAB_SIZE) for _ in range(length)]
            answer = _oracle_answer(oracle, prompt)
            if answer.smallest_gap >= MIN_GAP:
                break
            num_replaced += 1
        prompts.append(prompt)
        answers.append(answer)
    return prompts, answers, num_replaced


@torch.inference_mode()
def _oracle_answer(oracle: Any, prompt: list[int]) -> Answer:
    token_ids, logprobs, gaps = [], [], []
    ids, cache = torch.tensor([prompt]), None
    for _ in range(NUM_TOKENS):
        output = oracle(input_ids=ids, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        logits = output.logits[0, -1]
        best = logits.topk(2)
        gaps.append(float(best.values[0] - best.values[1]))
        token = int(best.indices[0])
        token_ids.append(token)
        logprobs.append(float(logits.log_softmax(-1)[token]))
        ids = torch.tensor([[token]])
    return Answer(token_ids, logprobs, min(gaps))


def _engine_answers(engine: Engine, prompts: list[list[int]]) -> list[Answer]:
    """All prompts at once through the real step loop."""
    root = bytes(32)
    answers = [Answer([], []) for _ in prompts]
    for number, prompt in enumerate(prompts):
        engine.add(
            SequenceSpec(
                attempt=Attempt(str(number), 0),
                token_ids=tuple(prompt),
                num_prompt_tokens=len(prompt),
                block_hashes=tuple(chain_hashes(root, prompt, BLOCK_SIZE)),
                hash_root=root,
                sampling=Sampling(max_tokens=NUM_TOKENS, temperature=0, logprobs=0),
                mode="full",
                reason="agg",
            )
        )
    while engine.has_work:
        for run in engine.step().tokens:
            answer = answers[int(run.rid)]
            answer.token_ids.extend(run.token_ids)
            answer.logprobs.extend(item.logprob for item in run.logprobs)
    engine.check_integrity()
    return answers
