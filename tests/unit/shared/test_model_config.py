"""config.json of each family in one form, and one clear sentence for what is not computed."""

from collections.abc import Mapping
from typing import Any

import pytest

from shared.errors import ModelError
from shared.model.config import parse_config
from shared.model.rope import Llama3Rope
from tests.support.models.tiny_model import TINY, TINY_GPT2

ROPE = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
MISTRAL = {"architectures": ["MistralForCausalLM"]}
QWEN2 = {"architectures": ["Qwen2ForCausalLM"]}
SWITCHED_ON = {**QWEN2, "use_sliding_window": True, "sliding_window": 8}


def _raw(**changes: Any) -> dict[str, Any]:
    return {**TINY, **changes}


def test_old_and_new_forms_are_one_config() -> None:
    shared = {name: value for name, value in TINY.items() if name != "rope_theta"}
    old = shared | {
        "rope_theta": 5e5,
        "rope_scaling": {"type": "llama3", **ROPE},
        "torch_dtype": "bfloat16",
    }
    new = shared | {
        "rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", **ROPE},
        "dtype": "bfloat16",
    }
    config = parse_config(new)
    assert parse_config(old) == config
    assert config.rope is not None and config.rope.theta == 5e5
    assert config.rope.scaling == Llama3Rope(8.0, 1.0, 4.0, 8192)
    assert config.dtype == "bfloat16"


def test_absent_fields_take_llamas_defaults() -> None:
    bare = _raw(num_attention_heads=4)
    for name in ("num_key_value_heads", "head_dim", "rope_theta", "rms_norm_eps"):
        bare.pop(name)
    config = parse_config(bare)
    assert (config.num_kv_heads, config.head_dim, config.group_size) == (4, 24, 1)
    assert config.rope is not None and config.rope.scaling is None
    assert (config.rope.theta, config.norm_eps, config.dtype) == (10000.0, 1e-6, "float32")
    assert config.windows == (0, 0)
    assert config.score_scales == (24**-0.5,) * 2


def test_absent_fields_take_each_familys_defaults() -> None:
    bare = _raw(num_attention_heads=32, hidden_size=128)
    for name in ("num_key_value_heads", "head_dim", "max_position_embeddings"):
        bare.pop(name)
    for name, num_kv_heads, head_dim, length, window in (
        ("LlamaForCausalLM", 32, 4, 2048, 0),
        ("MistralForCausalLM", 8, 4, 131072, 4096),
        ("Qwen2ForCausalLM", 32, 4, 32768, 0),
        ("Qwen3ForCausalLM", 32, 128, 32768, 0),
    ):
        config = parse_config(bare | {"architectures": [name]})
        assert (config.num_kv_heads, config.head_dim) == (num_kv_heads, head_dim)
        assert (config.default_len, config.windows[0]) == (length, window)


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"sliding_window": 8}, (0, 0)),
        ({**MISTRAL, "sliding_window": 8}, (8, 8)),
        ({**MISTRAL, "sliding_window": None}, (0, 0)),
        ({**MISTRAL, "sliding_window": 8, "layer_types": ["sliding_attention"] * 2}, (8, 8)),
        ({**QWEN2, "sliding_window": 8, "max_window_layers": 0}, (0, 0)),
        (SWITCHED_ON, (0, 0)),
        ({**SWITCHED_ON, "max_window_layers": 1}, (0, 8)),
        ({**SWITCHED_ON, "max_window_layers": 0}, (8, 8)),
        ({**SWITCHED_ON, "layer_types": ["sliding_attention", "full_attention"]}, (8, 0)),
        ({**SWITCHED_ON, "sliding_window": None, "max_window_layers": 0}, (0, 0)),
    ],
)
def test_each_layer_gets_its_window(changes: dict[str, Any], windows: tuple[int, ...]) -> None:
    assert parse_config(_raw(**changes)).windows == windows


def test_gpt2s_names_become_the_common_ones() -> None:
    config = parse_config(TINY_GPT2)
    assert (config.hidden_size, config.intermediate_size, config.num_layers) == (96, 384, 2)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (6, 6, 16)
    assert (config.default_len, config.longest_len, config.rope) == (512, 512, None)
    assert (config.norm_eps, config.tie_word_embeddings) == (1e-5, True)
    assert parse_config({**TINY_GPT2, "n_inner": 100}).intermediate_size == 100
    plain = parse_config({**TINY_GPT2, "scale_attn_weights": False})
    assert plain.score_scales == (1.0, 1.0)
    by_layer = parse_config({**TINY_GPT2, "scale_attn_by_inverse_layer_idx": True})
    assert by_layer.score_scales == (0.25, 0.125)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"architectures": ["BertModel"]}, "architecture BertModel is not supported"),
        ({"architectures": None}, "architecture none is not supported"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2}}, "rope type 'longrope'"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config given"),
        ({"use_sliding_window": True}, "use_sliding_window True"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer types"),
        ({**MISTRAL, "sliding_window": 0}, "sliding_window is 0"),
        (
            {**MISTRAL, "sliding_window": 8, "layer_types": ["full_attention"] * 2},
            "layer types",
        ),
        ({**SWITCHED_ON, "layer_types": ["full_attention"]}, "layer_types needs a list of 2"),
        ({**SWITCHED_ON, "layer_types": ["full_attention", "mamba"]}, "'mamba'"),
        ({**QWEN2, "layer_types": ["sliding_attention"] * 2}, "needs a sliding_window in use"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"num_key_value_heads": 4}, "cannot share"),
        ({"hidden_size": "96"}, "hidden_size is '96'"),
        ({"head_dim": 15}, "head_dim 15 is odd"),
        ({"rms_norm_eps": "1e-5"}, "rms_norm_eps is '1e-5'"),
        ({"dtype": "float8_e4m3fn"}, "float8_e4m3fn"),
    ],
)
def test_what_we_do_not_compute_is_refused(changes: dict[str, Any], sentence: str) -> None:
    _refused(_raw(**changes), sentence)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"activation_function": "gelu"}, "activation_function 'gelu'"),
        ({"add_cross_attention": True}, "add_cross_attention True"),
        ({"n_head": 5}, "96 does not split into 5 heads"),
        ({"n_layer": None}, "num_hidden_layers is None"),
    ],
)
def test_gpt2_variants_are_refused(changes: dict[str, Any], sentence: str) -> None:
    _refused({**TINY_GPT2, **changes}, sentence)


def _refused(raw: Mapping[str, Any], sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence) as refusal:
        parse_config(raw)
    assert "\n" not in str(refusal.value)
