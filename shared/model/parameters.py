"""How many parameters a model has, by its config alone: what its weights take before they are
read. Needs no torch."""

from shared.kv.layout import DTYPE_BYTES
from shared.model.config import ModelConfig

BIASED = frozenset({"Qwen2ForCausalLM", "GPT2LMHeadModel"})
"""have biases on queries, keys and values whatever config.json says"""
NORMS_HEADS = "Qwen3ForCausalLM"


def num_parameters(config: ModelConfig, num_ranks: int = 1) -> int:
    """Most that one of `num_ranks` ranks holds (see shared.engine.layers.shard)."""
    hidden = config.hidden_size
    norm = hidden if config.rope is not None else 2 * hidden
    positions = 0 if config.rope is not None else config.max_position_embeddings
    layers = config.num_layers * (_attention(config, num_ranks) + _mlp(config, num_ranks))
    norms = (2 * config.num_layers + 1) * norm
    return layers + norms + hidden * (config.vocab_size + positions + _head_rows(config, num_ranks))


def num_weight_bytes(config: ModelConfig, dtype: str, num_ranks: int = 1) -> int:
    """Of as many parameters."""
    return num_parameters(config, num_ranks) * DTYPE_BYTES[dtype]


def _attention(config: ModelConfig, num_ranks: int) -> int:
    """Of one layer."""
    hidden = config.hidden_size
    queries = config.num_heads // num_ranks * config.head_dim
    keys = max(1, config.num_kv_heads // num_ranks) * config.head_dim  # or one, copied
    number = hidden * (2 * queries + 2 * keys)
    if config.attention_bias or config.architecture in BIASED:
        number += queries + 2 * keys
    if config.attention_bias or config.rope is None:
        number += hidden
    if config.architecture == NORMS_HEADS:
        number += queries + keys
    return number


def _mlp(config: ModelConfig, num_ranks: int) -> int:
    """Of one layer."""
    columns = config.intermediate_size // num_ranks
    num_in = 2 if config.rope is not None else 1
    number = (num_in + 1) * columns * config.hidden_size
    if config.mlp_bias or config.rope is None:
        number += num_in * columns + config.hidden_size
    return number


def _head_rows(config: ModelConfig, num_ranks: int) -> int:
    """Rows of the product with the vocabulary that are no rows of the embedding."""
    if config.tie_word_embeddings and config.vocab_size % num_ranks == 0:
        return 0
    return -(-config.vocab_size // num_ranks)  # where tied, of the last rank: it pads its part
