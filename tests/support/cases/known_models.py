"""Models of which others printed figures, and what `baton capacity` says of them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from services.cli.capacity.devices import Device
from services.cli.capacity.estimate import Question, estimate
from shared.model.checkpoint import random_checkpoint
from tests.support.settings import settings_with

NOWHERE = Path("none")
VAST = Device("a vast GPU", 10**13)


def gpt2(layers: int, hidden: int, positions: int) -> dict[str, Any]:
    shape = {"n_layer": layers, "n_embd": hidden, "n_positions": positions}
    return {"architectures": ["GPT2LMHeadModel"], "vocab_size": 50257, "n_head": 16, **shape}


def llama2(layers: int, hidden: int, wide: int, heads: int, kv_heads: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 32000,
        "hidden_size": hidden,
        "intermediate_size": wide,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": 32768,
        "torch_dtype": "float16",
    }


GPT2 = {**gpt2(12, 768, 1024), "n_head": 12}
GPT2_MEDIUM = gpt2(24, 1024, 2048)
LLAMA_7B = llama2(32, 4096, 11008, 32, 32)
LLAMA_13B = llama2(40, 5120, 13824, 40, 40)
LLAMA_70B = llama2(80, 8192, 28672, 64, 8)


def question(raw: Mapping[str, Any], device: Device = VAST, **settings: Any) -> Question:
    chosen = settings_with(**{"dtype": "float16", **settings})
    prompt = min(4096, raw.get("n_positions", 4096))
    checkpoint = random_checkpoint(NOWHERE, "m", raw)
    return Question(checkpoint, device, chosen.compute, chosen.kv, chosen.engine, prompt)


def kv_bytes(raw: Mapping[str, Any], tokens: int) -> int:
    """Of one sequence."""
    rows = estimate(replace(question(raw), prompt=tokens)).rows
    return next(row.kv_bytes for row in rows if row.tokens == tokens)


def in_pool(raw: Mapping[str, Any], num_bytes: int, tokens: int) -> int:
    """Sequences of a length that a pool of a size holds."""
    asked = replace(question(raw), prompt=tokens)
    blocks = num_bytes // estimate(asked).layout.block_bytes
    rows = estimate(replace(asked, kv=replace(asked.kv, blocks=blocks))).rows
    return next(row.sequences for row in rows if row.tokens == tokens)
