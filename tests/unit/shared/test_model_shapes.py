"""The named shapes are those of the models they are named after."""

import pytest

from shared.model.config import ModelConfig, parse_config
from shared.model.shapes import SHAPES


def num_params(config: ModelConfig) -> int:
    """With embedding, norms and head."""
    heads = (2 * config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    layer = config.hidden_size * (heads + 3 * config.intermediate_size + 2)
    layer += 2 * config.head_dim * (config.architecture == "Qwen3ForCausalLM")
    tables = config.vocab_size * config.hidden_size * (1 if config.tie_word_embeddings else 2)
    return config.num_layers * layer + tables + config.hidden_size


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("llama-3.1-8b", 8_030_261_248),
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-0.6b", 596_049_920),
        ("llama-3.1-70b-40-layers", 36_327_530_496),
    ],
)
def test_number_of_parameters(name: str, wanted: int) -> None:
    assert num_params(parse_config(SHAPES[name])) == wanted


def test_half_of_the_large_model_is_half_of_its_layers() -> None:
    raw = {**SHAPES["llama-3.1-70b-40-layers"], "num_hidden_layers": 80}
    assert num_params(parse_config(raw)) == 70_553_706_496


def test_they_are_long_enough_for_32k() -> None:
    assert all(parse_config(raw).default_len > 32_768 for raw in SHAPES.values())
