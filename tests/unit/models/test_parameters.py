"""Parameters by arithmetic are those that a rank's model really holds, of every family."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from shared.engine.layers.operations import TorchOperations
from shared.engine.layers.random_weights import RandomWeights
from shared.engine.layers.rope import Rope
from shared.engine.layers.shard import Shard
from shared.engine.loading.runner_parts import load_model
from shared.model.checkpoint import random_checkpoint
from shared.model.config import ARCHITECTURES, parse_config
from shared.model.parameters import num_parameters
from shared.model.shapes import SHAPES
from tests.support.models.tiny_model import TINY, TINY_GPT2

WIDE = {**TINY, "num_attention_heads": 8, "num_key_value_heads": 4}
MODELS: Mapping[str, Mapping[str, Any]] = {
    "llama": WIDE,
    "llama-1-kv-head": {**WIDE, "num_key_value_heads": 1},
    "llama-biases": {**WIDE, "attention_bias": True, "mlp_bias": True},
    "llama-tied": {**WIDE, "tie_word_embeddings": True, "vocab_size": 131},
    "mistral": {**WIDE, "architectures": ["MistralForCausalLM"]},
    "qwen2": {**WIDE, "architectures": ["Qwen2ForCausalLM"]},
    "qwen3": {**WIDE, "architectures": ["Qwen3ForCausalLM"]},
    "gpt2": {**TINY_GPT2, "n_embd": 128, "n_head": 8},
}


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensors_in(getattr(value, field.name))


def held(raw: Mapping[str, Any], rank: int, num_ranks: int) -> int:
    """Elements of all the weights of a rank, shared ones once."""
    checkpoint = random_checkpoint(Path("none"), "tiny", raw)
    shard = Shard(checkpoint.config, rank, num_ranks)
    with RandomWeights(checkpoint, torch.float32, torch.device("cpu"), shard) as reader:
        model = load_model(shard.config, reader, 64, TorchOperations())
    values = [value for value in vars(model).values() if not isinstance(value, Rope)]
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in tensors_in(values)
    }
    return sum(storages.values()) // 4


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
@pytest.mark.parametrize("name", MODELS)
def test_no_rank_holds_more(name: str, num_ranks: int) -> None:
    """And one holds as many, but for biases that the first has and padding that the last has."""
    raw = MODELS[name]
    most = max(held(raw, rank, num_ranks) for rank in (0, num_ranks - 1))
    number = num_parameters(parse_config(raw), num_ranks)
    assert most <= number <= (1.01 * most if num_ranks > 1 else most)


def test_every_family_is_among_them() -> None:
    assert {raw["architectures"][0] for raw in MODELS.values()} == ARCHITECTURES.keys()


def test_a_known_model_has_as_many_as_its_authors_say() -> None:
    assert num_parameters(parse_config(SHAPES["llama-3.1-8b"])) == 8_030_261_248
