"""config.json of a decoder-only model, read into one form whatever family and tool wrote it.

Knows the form transformers 4 wrote (`rope_theta`, `rope_scaling`, `torch_dtype`) and the form 5
writes (`rope_parameters`, `dtype`). Needs no torch, so a gateway may use it. What changes the
arithmetic and no file in shared/engine/models computes is one ModelError sentence, never a guess.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from shared.errors import ModelError
from shared.kv.layout import DTYPE_BYTES
from shared.model.config_fields import count, number
from shared.model.rope import RopeConfig, parse_rope

FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class Family:
    """What architectures of one kind have in common."""

    module: str
    """computes it"""
    defaults: Mapping[str, Any]
    """what transformers takes for a field that the file leaves out"""
    sliding: Literal["never", "always", "switched"] = "never"
    """always: every layer, if the file has a window; switched: by `use_sliding_window`"""
    learned_positions: bool = False
    activations: tuple[str, ...] = ("silu",)
    common_names: Mapping[str, str] = field(default_factory=dict)
    """its own name of a field -> the name the others use"""


QWEN = {
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
ARCHITECTURES = {
    "LlamaForCausalLM": Family("shared.engine.models.llama", {"max_position_embeddings": 2048}),
    "MistralForCausalLM": Family(
        "shared.engine.models.llama",
        {"num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096},
        sliding="always",
    ),
    "Qwen2ForCausalLM": Family("shared.engine.models.qwen2", QWEN, sliding="switched"),
    "Qwen3ForCausalLM": Family(
        "shared.engine.models.qwen3", {**QWEN, "head_dim": 128}, sliding="switched"
    ),
    "GPT2LMHeadModel": Family(
        "shared.engine.models.gpt2",
        {
            "max_position_embeddings": 1024,
            "rms_norm_eps": 1e-5,
            "hidden_act": "gelu_new",
            "tie_word_embeddings": True,
        },
        learned_positions=True,
        activations=("gelu_new", "gelu_pytorch_tanh"),
        common_names={
            "n_embd": "hidden_size",
            "n_head": "num_attention_heads",
            "n_layer": "num_hidden_layers",
            "n_positions": "max_position_embeddings",
            "n_inner": "intermediate_size",
            "layer_norm_epsilon": "rms_norm_eps",
            "activation_function": "hidden_act",
        },
    ),
}
"""what config.json calls it -> its family; a new family is one entry here and one file there"""


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a decoder-only model."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    max_position_embeddings: int
    rope: RopeConfig | None
    """None: a learned vector per position instead"""
    windows: tuple[int, ...]
    """per layer, how many positions a token attends to, its own included; 0 = all"""
    score_scales: tuple[float, ...]
    """per layer, what query times key is multiplied with"""
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    dtype: str
    """type the weights were saved for; float32 when the file does not say"""

    @property
    def group_size(self) -> int:
        """Query heads that share one KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def default_len(self) -> int:
        """Tokens of a sequence when nobody asks for another length (see shared.model.rope)."""
        if self.rope is None:
            return self.max_position_embeddings
        return self.rope.default_len(self.max_position_embeddings)

    @property
    def longest_len(self) -> int:
        """Most tokens of a sequence."""
        if self.rope is None:
            return self.max_position_embeddings
        return self.rope.longest_len(self.max_position_embeddings)


def parse_config(raw: Mapping[str, Any]) -> ModelConfig:
    """A config.json's content; ModelError if it asks for what no file in models/ computes."""
    architecture = _architecture(raw)
    family = ARCHITECTURES[architecture]
    raw = {**family.defaults, **_with_common_names(raw, family)}
    _refuse_variants(raw, family)
    num_heads = count(raw, "num_attention_heads")
    num_kv_heads = count(raw, "num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise ModelError(
            f"config.json: {num_heads} attention heads cannot share {num_kv_heads} KV heads evenly"
        )
    num_layers = count(raw, "num_hidden_layers")
    hidden_size = count(raw, "hidden_size")
    if raw.get("head_dim") is None and hidden_size % num_heads:
        raise ModelError(
            f"config.json: a hidden size of {hidden_size} does not split into {num_heads} heads"
        )
    head_dim = count(raw, "head_dim", hidden_size // num_heads)
    positions = count(raw, "max_position_embeddings")
    return ModelConfig(
        architecture=architecture,
        vocab_size=count(raw, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_intermediate_size(raw, family),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        norm_eps=number(raw, "rms_norm_eps", 1e-6),
        max_position_embeddings=positions,
        rope=_rope(raw, family, head_dim, positions),
        windows=_windows(raw, family, num_layers),
        score_scales=_score_scales(raw, head_dim, num_layers),
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        attention_bias=bool(raw.get("attention_bias", False)),
        mlp_bias=bool(raw.get("mlp_bias", False)),
        dtype=_saved_dtype(raw),
    )


def _architecture(raw: Mapping[str, Any]) -> str:
    names = raw.get("architectures") or []
    for name in names:
        if name in ARCHITECTURES:
            return str(name)
    found = ", ".join(map(str, names)) or "none"
    raise ModelError(
        f"config.json: architecture {found} is not supported (have {', '.join(ARCHITECTURES)})"
    )


def _with_common_names(raw: Mapping[str, Any], family: Family) -> dict[str, Any]:
    renamed = {
        common: raw[own] for own, common in family.common_names.items() if raw.get(own) is not None
    }
    return {**raw, **renamed}


def _refuse_variants(raw: Mapping[str, Any], family: Family) -> None:
    """Fields that change the arithmetic in ways no model file here computes."""
    expected: dict[str, tuple[Any, ...]] = {
        "hidden_act": family.activations,
        "quantization_config": (None,),
        "add_cross_attention": (False, None),
    }
    own_names = {common: own for own, common in family.common_names.items()}
    if family.sliding == "never":
        expected["use_sliding_window"] = (False, None)
    for name, allowed in expected.items():
        if name in raw and raw[name] not in allowed:
            shown = "given" if isinstance(raw[name], dict) else repr(raw[name])
            raise ModelError(f"config.json: {own_names.get(name, name)} {shown} is not supported")


def _intermediate_size(raw: Mapping[str, Any], family: Family) -> int:
    """GPT-2 may leave it out: four times as wide."""
    if family.learned_positions:
        return count(raw, "intermediate_size", 4 * count(raw, "hidden_size"))
    return count(raw, "intermediate_size")


def _rope(
    raw: Mapping[str, Any], family: Family, head_dim: int, positions: int
) -> RopeConfig | None:
    if family.learned_positions:
        return None
    if head_dim % 2:
        raise ModelError(f"config.json: head_dim {head_dim} is odd; rotary needs pairs")
    return parse_rope(raw, head_dim, positions)


def _windows(raw: Mapping[str, Any], family: Family, num_layers: int) -> tuple[int, ...]:
    """Per layer; from `layer_types` where the file has them, else by the family's rule."""
    window = 0
    switched_on = family.sliding == "switched" and raw.get("use_sliding_window")
    if (family.sliding == "always" or switched_on) and raw.get("sliding_window") is not None:
        window = count(raw, "sliding_window")
    first = int(raw.get("max_window_layers") or 0) if switched_on else 0
    implied = [SLIDING if window and index >= first else FULL for index in range(num_layers)]
    layer_types = raw.get("layer_types") or implied
    if not isinstance(layer_types, list) or len(layer_types) != num_layers:
        raise ModelError(f"config.json: layer_types needs a list of {num_layers}")
    kinds = sorted(set(map(str, layer_types)))
    fit = layer_types == implied or family.sliding == "switched"
    if not fit or not set(kinds) <= {FULL, SLIDING}:
        raise ModelError(f"config.json: layer types {kinds} are not supported in this model")
    if SLIDING in kinds and not window:
        raise ModelError(f"config.json: layer type {SLIDING} needs a sliding_window in use")
    return tuple(window if kind == SLIDING else 0 for kind in layer_types)


def _score_scales(raw: Mapping[str, Any], head_dim: int, num_layers: int) -> tuple[float, ...]:
    """1 / sqrt(head_dim), and what GPT-2's two switches make of it."""
    scale = head_dim**-0.5 if raw.get("scale_attn_weights", True) else 1.0
    by_layer = bool(raw.get("scale_attn_by_inverse_layer_idx", False))
    return tuple(scale / (index + 1 if by_layer else 1) for index in range(num_layers))


def _saved_dtype(raw: Mapping[str, Any]) -> str:
    name = str(raw.get("dtype") or raw.get("torch_dtype") or "float32").removeprefix("torch.")
    if name not in DTYPE_BYTES:
        raise ModelError(f"config.json: dtype {name!r} is not supported ({', '.join(DTYPE_BYTES)})")
    return name
