"""Small random checkpoints and hand-made batches, for tests of the model runner.

Needs no transformers, so that tests/gpu can use it too.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from shared.engine.layers.attention import TiledAttention
from shared.engine.layers.kv_cache import TORCH_DTYPES, pool_shape
from shared.engine.layers.model import Model
from shared.engine.layers.operations import TorchOperations
from shared.engine.layers.weights import WeightReader
from shared.engine.loading.runner_parts import load_model
from shared.engine.running.model_runner import ModelRunner
from shared.engine.scheduling.batch import HostBatch, Section, slot_range
from shared.kv.layout import num_blocks_for
from shared.model.checkpoint import Checkpoint, kv_layout, load_checkpoint, max_model_len

STD = 0.2
"""wide enough that greedy answers do not collapse into one token"""

TINY: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 131,
    "hidden_size": 96,
    "intermediate_size": 200,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "eos_token_id": 1,
}

TINY_GPT2: Mapping[str, Any] = {
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 131,
    "n_embd": 96,
    "n_layer": 2,
    "n_head": 6,
    "n_positions": 512,
    "n_inner": None,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "eos_token_id": 1,
}


def write_checkpoint(path: Path, config: Mapping[str, Any], seed: int = 0) -> Checkpoint:
    """A checkpoint directory with random weights, as save_pretrained would leave it."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(dict(config)), encoding="utf-8")
    save_file(random_weights(config, seed), path / "model.safetensors")
    return load_checkpoint(str(path))


def random_weights(config: Mapping[str, Any], seed: int = 0) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint, std 0.2, norms around one."""
    if config["architectures"] == ["GPT2LMHeadModel"]:
        return _random_gpt2_weights(config, seed)
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * STD

    hidden, wide = config["hidden_size"], config["intermediate_size"]
    head_dim = config["head_dim"]
    q_width = config["num_attention_heads"] * head_dim
    kv_width = config["num_key_value_heads"] * head_dim
    weights = {
        "model.embed_tokens.weight": draw(config["vocab_size"], hidden),
        "model.norm.weight": 1 + draw(hidden),
    }
    if not config.get("tie_word_embeddings"):
        weights["lm_head.weight"] = draw(config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        weights[prefix + "input_layernorm.weight"] = 1 + draw(hidden)
        weights[prefix + "post_attention_layernorm.weight"] = 1 + draw(hidden)
        attention_bias, mlp_bias = config.get("attention_bias"), config.get("mlp_bias")
        qkv_bias = attention_bias or config["architectures"] == ["Qwen2ForCausalLM"]
        for name, outputs, inputs, biased in (
            ("self_attn.q_proj", q_width, hidden, qkv_bias),
            ("self_attn.k_proj", kv_width, hidden, qkv_bias),
            ("self_attn.v_proj", kv_width, hidden, qkv_bias),
            ("self_attn.o_proj", hidden, q_width, attention_bias),
            ("mlp.gate_proj", wide, hidden, mlp_bias),
            ("mlp.up_proj", wide, hidden, mlp_bias),
            ("mlp.down_proj", hidden, wide, mlp_bias),
        ):
            weights[f"{prefix}{name}.weight"] = draw(outputs, inputs)
            if biased:
                weights[f"{prefix}{name}.bias"] = draw(outputs)
        if config["architectures"] == ["Qwen3ForCausalLM"]:
            weights[prefix + "self_attn.q_norm.weight"] = 1 + draw(head_dim)
            weights[prefix + "self_attn.k_norm.weight"] = 1 + draw(head_dim)
    return weights


def _random_gpt2_weights(config: Mapping[str, Any], seed: int) -> dict[str, torch.Tensor]:
    """Named as the bare model's; the head is tied."""
    generator = torch.Generator().manual_seed(seed)
    hidden = config["n_embd"]
    wide = config["n_inner"] or 4 * hidden
    norms, sizes = ["ln_f"], {"wte": [config["vocab_size"], hidden]}
    sizes["wpe"] = [config["n_positions"], hidden]
    for prefix in (f"h.{layer}." for layer in range(config["n_layer"])):
        norms += [prefix + "ln_1", prefix + "ln_2"]
        sizes[prefix + "attn.c_attn"] = [hidden, 3 * hidden]
        sizes[prefix + "attn.c_proj"] = [hidden, hidden]
        sizes[prefix + "mlp.c_fc"] = [hidden, wide]
        sizes[prefix + "mlp.c_proj"] = [wide, hidden]
    sizes |= {name: [hidden] for name in norms}
    weights = {}
    for name, size in sizes.items():
        weights[name + ".weight"] = torch.randn(size, generator=generator) * STD
        if not name.startswith("w"):
            weights[name + ".bias"] = torch.randn(size[-1:], generator=generator) * STD
    for name in norms:
        weights[name + ".weight"] += 1
    return weights


@dataclass(frozen=True)
class Rows:
    """Tokens [start, end) of one sequence, to be computed in one step."""

    token_ids: Sequence[int]
    start: int
    end: int
    block_table: Sequence[int]


def model_of(checkpoint: Checkpoint, length: int, dtype: torch.dtype = torch.float32) -> Model:
    """The checkpoint's model in plain torch on the CPU."""
    with WeightReader(checkpoint, dtype, torch.device("cpu")) as reader:
        return load_model(checkpoint.config, reader, length, TorchOperations())


class TinyRunner:
    """A model runner with its pool; the pool starts as NaN, as stale memory might."""

    def __init__(
        self, checkpoint: Checkpoint, *, num_blocks: int, block_size: int, dtype: str = "float32"
    ) -> None:
        self.layout = kv_layout(checkpoint, dtype, block_size)
        self.block_size = block_size
        self.config = checkpoint.config
        shape, torch_dtype = pool_shape(self.layout, num_blocks), TORCH_DTYPES[dtype]
        self.pool = torch.full(shape, torch.nan, dtype=torch_dtype)
        model = model_of(checkpoint, max_model_len(checkpoint.config, 0), torch_dtype)
        self.runner = ModelRunner(model, self.pool, TiledAttention())

    def run(self, steps: Sequence[Rows], *, all_rows: bool = False) -> torch.Tensor:
        """Logits of each entry's last row, or of every row."""
        return self.runner.run(hand_made_batch(steps, self.block_size, all_rows=all_rows))

    def alone(self, token_ids: Sequence[int]) -> torch.Tensor:
        """Logits of all positions of one sequence in one chunk, in blocks 0, 1, 2 ..."""
        table = range(num_blocks_for(len(token_ids), self.block_size))
        return self.run([Rows(token_ids, 0, len(token_ids), table)], all_rows=True)


def hand_made_batch(steps: Sequence[Rows], block_size: int, *, all_rows: bool) -> HostBatch:
    """The batch of these entries."""
    lengths = [item.end - item.start for item in steps]
    ids = [token for item in steps for token in item.token_ids[item.start : item.end]]
    positions = [position for item in steps for position in range(item.start, item.end)]
    slots = [
        slot
        for item in steps
        for slot in slot_range(item.block_table, item.start, item.end, block_size)
    ]
    widths = [num_blocks_for(item.end, block_size) for item in steps]
    tables = np.zeros((len(steps), max(widths)), dtype=np.int32)
    for row, (item, width) in enumerate(zip(steps, widths, strict=True)):
        tables[row, :width] = list(item.block_table[:width])
    lasts = (np.cumsum(lengths) - 1).tolist()
    wanted = list(range(sum(lengths))) if all_rows else lasts
    return HostBatch.of(
        {
            Section.INPUT_IDS: ids,
            Section.POSITIONS: positions,
            Section.SLOT_MAPPING: slots,
            Section.CONTEXT_LENS: [item.end for item in steps],
            Section.QUERY_LENS: lengths,
            Section.LOGITS_ROWS: wanted,
            Section.COPIES: (),
            Section.BLOCK_TABLES: tables,
        }
    )


def starts_of(query_lens: Sequence[int]) -> torch.Tensor:
    """i32[S + 1]: the first row of each sequence, and the number of all rows."""
    return torch.from_numpy(np.cumsum([0, *query_lens]).astype(np.int32))
