"""A random tiny Llama with a byte tokenizer: what `demo` serves until a trained model lies in
`checkpoint/`. Its answers are noise; it is complete enough to exercise every process.
"""

import json
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from shared.made_folder import made_folder

logger = logging.getLogger(__name__)

VERSION = "random-1"
"""part of the folder's name: a change below must not find an older folder"""
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
STD = 0.2
"""wide enough that greedy decoding does not fall into one token"""


def random_model(cache_dir: Path) -> Path:
    """The directory of the random model, made on first use; safe when processes race."""
    path = cache_dir / f"demo-{VERSION}"
    logger.warning("no trained demo model is here: serving a random one, its answers are noise")
    return made_folder(path, _write)


def _write(path: Path) -> None:
    tokenizer = _tokenizer()
    config = _config(tokenizer.get_vocab_size())
    tokenizer.save(str(path / "tokenizer.json"))
    _write_json(path / "config.json", config)
    _write_json(
        path / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "model_max_length": config["max_position_embeddings"],
            "chat_template": CHAT_TEMPLATE,
        },
    )
    _write_json(path / "generation_config.json", {"eos_token_id": config["eos_token_id"]})
    save_file(_weights(config), path / "model.safetensors", metadata={"format": "pt"})


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + os.linesep, encoding="utf-8")


def _tokenizer() -> Tokenizer:
    """One token per byte, and the chat markers."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: number for number, symbol in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


def _config(vocab_size: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab_size,
        "hidden_size": 64,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "max_position_embeddings": 2048,
        "eos_token_id": vocab_size - 1,
        "dtype": "float32",
    }


def _weights(config: dict[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    random = np.random.default_rng(0)
    hidden, wide = config["hidden_size"], config["intermediate_size"]
    kv_width = config["num_key_value_heads"] * config["head_dim"]

    def draw(*shape: int) -> np.ndarray[Any, Any]:
        return (random.standard_normal(shape) * STD).astype(np.float32)

    weights = {
        "model.embed_tokens.weight": draw(config["vocab_size"], hidden),
        "model.norm.weight": np.ones(hidden, np.float32),
    }
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        weights[prefix + "input_layernorm.weight"] = np.ones(hidden, np.float32)
        weights[prefix + "post_attention_layernorm.weight"] = np.ones(hidden, np.float32)
        weights[prefix + "self_attn.q_proj.weight"] = draw(hidden, hidden)
        weights[prefix + "self_attn.k_proj.weight"] = draw(kv_width, hidden)
        weights[prefix + "self_attn.v_proj.weight"] = draw(kv_width, hidden)
        weights[prefix + "self_attn.o_proj.weight"] = draw(hidden, hidden)
        weights[prefix + "mlp.gate_proj.weight"] = draw(wide, hidden)
        weights[prefix + "mlp.up_proj.weight"] = draw(wide, hidden)
        weights[prefix + "mlp.down_proj.weight"] = draw(hidden, wide)
    return weights
