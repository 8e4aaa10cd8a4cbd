"""How many bytes and products one step of a model needs at least, by arithmetic."""

from dataclasses import dataclass

from shared.kv.layout import DTYPE_BYTES
from shared.model.config import ModelConfig


@dataclass(frozen=True)
class ModelSize:
    """What one rank of a model reads and multiplies; embedding rows are left out."""

    layer_params: int
    """in the matrices of all layers"""
    head_params: int
    """in the product with the vocabulary"""
    norm_params: int
    windows: tuple[int, ...]
    """per layer, positions a token attends to; 0 = all"""
    kv_layer_bytes: int
    """K and V of one position in one layer"""
    attention_width: int
    """query heads x head size"""
    param_bytes: int

    @classmethod
    def of(cls, config: ModelConfig, dtype: str, tp_size: int = 1) -> "ModelSize":
        """Of one rank; KV heads are replicated when there are fewer than ranks."""
        num_kv_heads = max(1, config.num_kv_heads // tp_size)
        width = config.num_heads * config.head_dim // tp_size
        kv_width = num_kv_heads * config.head_dim
        hidden = config.hidden_size
        num_mlp = 2 if config.architecture == "GPT2LMHeadModel" else 3
        mlp = num_mlp * hidden * config.intermediate_size // tp_size
        layer_params = hidden * (2 * width + 2 * kv_width) + mlp
        return cls(
            layer_params=config.num_layers * layer_params,
            head_params=config.vocab_size * hidden // tp_size,
            norm_params=(2 * config.num_layers + 1) * hidden,
            windows=config.windows,
            kv_layer_bytes=2 * kv_width * DTYPE_BYTES[dtype],
            attention_width=width,
            param_bytes=DTYPE_BYTES[dtype],
        )

    @property
    def weight_bytes(self) -> int:
        """Read by every decode step."""
        return (self.layer_params + self.head_params + self.norm_params) * self.param_bytes

    def kv_read_bytes(self, context: float) -> float:
        """K and V that one token attends to, `context` positions long."""
        return self.kv_layer_bytes * sum(_visible(context, window) for window in self.windows)

    def attention_flops(self, num_tokens: int) -> float:
        """Both products of causal attention over one prompt, visible keys only, all layers."""
        keys = sum(_visible_keys(num_tokens, window) for window in self.windows)
        return 4.0 * self.attention_width * keys

    def flops_of_pairs(self, num_pairs: float, context: float) -> float:
        """The same over pairs of a token and a position that it attends to, of tokens that attend
        to `context` positions on average."""
        shares = sum(_visible(context, window) / max(1.0, context) for window in self.windows)
        return 4.0 * self.attention_width * num_pairs * shares


def _visible(context: float, window: int) -> float:
    return min(context, window) if window else context


def _visible_keys(num_tokens: int, window: int) -> int:
    """Summed over the tokens of one prompt in one layer."""
    if not window or num_tokens <= window:
        return num_tokens * (num_tokens + 1) // 2
    return window * (window + 1) // 2 + (num_tokens - window) * window
