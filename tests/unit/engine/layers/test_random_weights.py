"""Drawn weights: like trained ones where it matters, and the same for everybody who draws them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from shared.engine.layers.operations import TorchOperations
from shared.engine.layers.random_weights import RandomWeights
from shared.engine.loading.runner_parts import load_model
from shared.model.checkpoint import random_checkpoint
from shared.model.config import parse_config
from tests.support.models.tiny_model import TINY, TINY_GPT2

FAMILIES = {
    "llama": TINY,
    "tied": {**TINY, "tie_word_embeddings": True},
    "qwen2": {**TINY, "architectures": ["Qwen2ForCausalLM"]},
    "qwen3": {**TINY, "architectures": ["Qwen3ForCausalLM"]},
    "gpt2": TINY_GPT2,
}


def reader(raw: Mapping[str, Any] = TINY, name: str = "tiny") -> RandomWeights:
    checkpoint = random_checkpoint(Path("none"), name, raw)
    return RandomWeights(checkpoint, torch.float32, torch.device("cpu"))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_finds_all_its_tensors(family: str) -> None:
    raw = FAMILIES[family]
    with reader(raw) as weights:
        model = load_model(parse_config(raw), weights, 64, TorchOperations())
    assert all(linear.weight.isfinite().all() for linear in model.linears)


def test_matrices_are_scaled_by_their_inputs() -> None:
    weight = reader().linear("a", 512, 400).weight
    assert weight.std().item() == pytest.approx(400**-0.5, rel=0.02)
    assert abs(weight.mean().item()) < 0.001
    assert not (weight == 0).any()


def test_norms_lie_around_one_and_biases_around_zero() -> None:
    weights = reader()
    assert weights.tensor("norm.weight", 4096).mean().item() == pytest.approx(1, abs=0.01)
    assert weights.tensor("norm.weight", 4096).std().item() == pytest.approx(0.1, rel=0.1)
    assert weights.tensor("qkv.bias", 4096).mean().item() == pytest.approx(0, abs=0.01)


def test_a_tensor_depends_on_its_name_and_its_model_only() -> None:
    first = reader().tensor("a.weight", 8, 8)
    later = reader()
    later.tensor("b.weight", 8, 8)
    assert torch.equal(later.tensor("a.weight", 8, 8), first)
    assert not torch.equal(later.tensor("b.weight", 8, 8), first)
    assert not torch.equal(reader(name="other").tensor("a.weight", 8, 8), first)
