"""Rotary angles of each kind of scaling against transformers' own functions."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from shared.engine.layers.rope import Rope, inverse_frequencies
from shared.model.config import ModelConfig, parse_config
from tests.support.models.tiny_model import TINY

CPU = torch.device("cpu")
ORIGINAL = {"original_max_position_embeddings": 64}
SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 3.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        **ORIGINAL,
    },
    "yarn": {"rope_type": "yarn", "factor": 8.0, **ORIGINAL},
    "yarn-without-original": {"rope_type": "yarn", "factor": 8.0},
    "yarn-attention-factor": {
        "rope_type": "yarn",
        "factor": 8.0,
        "attention_factor": 0.7,
        "mscale": 0.9,
        "mscale_all_dim": 0.4,
        **ORIGINAL,
    },
    "yarn-mscale": {"rope_type": "yarn", "factor": 40.0, "mscale": 0.707, **ORIGINAL},
    "yarn-mscales": {
        "rope_type": "yarn",
        "factor": 40.0,
        "mscale": 0.707,
        "mscale_all_dim": 1.1,
        **ORIGINAL,
    },
    "yarn-betas": {
        "rope_type": "yarn",
        "factor": 8.0,
        "beta_fast": 9.0,
        "beta_slow": 2.5,
        "truncate": False,
        **ORIGINAL,
    },
    "yarn-no-ramp": {"rope_type": "yarn", "factor": 8, "beta_fast": 1e-9, "beta_slow": 1e-9},
}


def _config(scaling: dict[str, Any], beside: dict[str, Any]) -> ModelConfig:
    parameters = {"rope_theta": 1000.0, **scaling}
    return parse_config({**TINY, "head_dim": 32, "rope_parameters": parameters, **beside})


def _theirs(
    scaling: dict[str, Any], beside: dict[str, Any], length: int | None
) -> tuple[torch.Tensor, float]:
    config = LlamaConfig(
        hidden_size=96,
        num_attention_heads=6,
        head_dim=32,
        max_position_embeddings=512,
        rope_parameters={"rope_theta": 1000.0, **scaling},
        **beside,
    )
    frequencies, length_factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](
        config, CPU, seq_len=length
    )
    return frequencies, float(length_factor)


@pytest.mark.parametrize("beside", [{}, {"original_max_position_embeddings": 128}])
@pytest.mark.parametrize("name", SCALINGS)
def test_frequencies_and_length_equal_transformers(name: str, beside: dict[str, Any]) -> None:
    if beside and name == "dynamic":
        beside = {}
    config = _config(SCALINGS[name], beside)
    assert config.rope is not None
    theirs, factor = _theirs(SCALINGS[name], beside, None)
    ours = inverse_frequencies(config.rope, 32, 512)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)
    cos, sin = Rope(config, 512, CPU).at(torch.tensor([0, 300]), torch.float32)
    angles = torch.tensor([[0.0], [300.0]]) * theirs
    torch.testing.assert_close(cos[:, 0], angles.cos() * factor, rtol=0, atol=1e-4)
    torch.testing.assert_close(sin[:, 0], angles.sin() * factor, rtol=0, atol=1e-4)


@pytest.mark.parametrize("length", [100, 512, 513, 1000, 1536])
def test_a_dynamic_base_is_transformers_at_that_length(length: int) -> None:
    config = _config(SCALINGS["dynamic"], {})
    assert config.rope is not None
    theirs, _ = _theirs(SCALINGS["dynamic"], {}, length)
    ours = inverse_frequencies(config.rope, 32, length)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)
    other = inverse_frequencies(config.rope, 32, 800)
    assert not torch.allclose(other, theirs, rtol=1e-3)


def test_every_field_of_a_scaling_matters() -> None:
    changes = {"factor": 9.0, "beta_fast": 20.0, "beta_slow": 3.0, "truncate": True, **ORIGINAL}
    changes["original_max_position_embeddings"] = 32
    scaling = SCALINGS["yarn-betas"]
    rope = _config(scaling, {}).rope
    assert rope is not None
    for field, value in changes.items():
        other = _config({**scaling, field: value}, {}).rope
        assert other is not None
        assert not torch.allclose(
            inverse_frequencies(other, 32, 512), inverse_frequencies(rope, 32, 512), rtol=1e-4
        ), field
