"""Weights arrive by name, fused, cast and from any shard; whatever does not fit ends the start."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from shared.engine.layers.weights import WeightReader
from shared.errors import ModelError
from shared.model.checkpoint import Checkpoint, load_checkpoint
from tests.support.models.tiny_model import (
    TINY,
    TinyRunner,
    model_of,
    random_weights,
    write_checkpoint,
)

CPU = torch.device("cpu")
PROMPT = [5, 7, 11, 13, 17]
LAYER = "model.layers.1."


def _save(path: Path, weights: dict[str, torch.Tensor], **config: Any) -> Checkpoint:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps({**TINY, **config}), encoding="utf-8")
    save_file(weights, path / "model.safetensors")
    return load_checkpoint(str(path))


def test_shards_give_the_same_model_as_one_file(tmp_path: Path) -> None:
    whole = write_checkpoint(tmp_path / "whole", TINY)
    parts = tmp_path / "parts"
    parts.mkdir()
    weights = random_weights(TINY)
    files = {name: f"part-{number % 3}.safetensors" for number, name in enumerate(weights)}
    for file in set(files.values()):
        save_file({name: weights[name] for name in weights if files[name] == file}, parts / file)
    (parts / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    (parts / "config.json").write_text(json.dumps(dict(TINY)))
    logits = [
        TinyRunner(item, num_blocks=1, block_size=16).alone(PROMPT)
        for item in (whole, load_checkpoint(str(parts)))
    ]
    assert torch.equal(*logits)


def test_fused_layers_lie_side_by_side_in_the_wanted_type(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, {**TINY, "attention_bias": True})
    weights = random_weights({**TINY, "attention_bias": True})
    names = [f"{LAYER}self_attn.{name}_proj" for name in "qkv"]
    with WeightReader(checkpoint, torch.bfloat16, CPU) as reader:
        fused = reader.fused(dict(zip(names, (96, 32, 32), strict=True)), 96, bias=True)
    assert fused.bias is not None
    assert torch.equal(
        fused.weight, torch.cat([weights[name + ".weight"] for name in names]).bfloat16()
    )
    assert torch.equal(
        fused.bias, torch.cat([weights[name + ".bias"] for name in names]).bfloat16()
    )


@pytest.mark.parametrize("name", [LAYER + "mlp.up_proj.weight", "lm_head.weight"])
def test_a_missing_tensor_is_named(name: str, tmp_path: Path) -> None:
    weights = random_weights(TINY)
    del weights[name]
    with pytest.raises(ModelError, match=f"tensor {name} is missing"):
        model_of(_save(tmp_path, weights), 64)


def test_another_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    weights = random_weights(TINY)
    weights[LAYER + "self_attn.k_proj.weight"] = torch.zeros(48, 96)
    with pytest.raises(ModelError, match=r"k_proj.weight has shape \[48, 96\].*\[32, 96\]"):
        model_of(_save(tmp_path, weights), 64)


def test_a_tensor_without_a_place_is_refused(tmp_path: Path) -> None:
    weights = random_weights(TINY)
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)
    model_of(_save(tmp_path, weights), 64)
    weights[LAYER + "self_attn.q_proj.bias"] = torch.zeros(96)
    with pytest.raises(ModelError, match=r"1 tensors have no place .*q_proj\.bias"):
        model_of(_save(tmp_path, weights), 64)


def test_quantized_integers_are_refused(tmp_path: Path) -> None:
    weights = random_weights(TINY)
    name = LAYER + "mlp.down_proj.weight"
    weights[name] = torch.zeros(weights[name].shape, dtype=torch.int8)
    with pytest.raises(ModelError, match=r"down_proj.weight is torch.int8"):
        model_of(_save(tmp_path, weights), 64)


def test_a_tied_head_ignores_a_stored_copy(tmp_path: Path) -> None:
    weights = random_weights({**TINY, "tie_word_embeddings": True})
    weights["lm_head.weight"] = torch.zeros(131, 96)
    checkpoint = _save(tmp_path, weights, tie_word_embeddings=True)
    assert TinyRunner(checkpoint, num_blocks=1, block_size=16).alone(PROMPT).std() > 0
