"""Writes and reads the checkpoint in Hugging Face's form, weights in bfloat16."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from shared.demo_model.chat import CHAT_TEMPLATE, END_OF_TEXT, SPECIAL_TOKENS, TURN_END
from shared.demo_model.recipe.network import Network, Shape


def _config(shape: Shape) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "dtype": "bfloat16",
        "eos_token_id": SPECIAL_TOKENS.index(TURN_END),
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate_size,
        "max_position_embeddings": shape.max_position_embeddings,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": shape.num_heads,
        "num_hidden_layers": shape.num_layers,
        "num_key_value_heads": shape.num_kv_heads,
        "pad_token_id": SPECIAL_TOKENS.index(END_OF_TEXT),
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_parameters": {"rope_theta": shape.rope_theta, "rope_type": "default"},
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": True,
        "vocab_size": shape.vocab_size,
    }


def _tokenizer_config(shape: Shape) -> dict[str, Any]:
    added = {
        str(index): {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": True,
        }
        for index, token in enumerate(SPECIAL_TOKENS)
    }
    return {
        "added_tokens_decoder": added,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": TURN_END,
        "model_max_length": shape.max_position_embeddings,
        "pad_token": END_OF_TEXT,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def save_checkpoint(network: Network, tokenizer: Tokenizer, directory: Path) -> None:
    """Writes config, weights, tokenizer and generation defaults into `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    weights = {
        name: tensor.detach().to(torch.bfloat16).cpu().contiguous()
        for name, tensor in network.state_dict().items()
    }
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save(str(directory / "tokenizer.json"))
    _write_json(directory / "config.json", _config(network.shape))
    _write_json(directory / "tokenizer_config.json", _tokenizer_config(network.shape))
    stop_ids = [SPECIAL_TOKENS.index(token) for token in (TURN_END, END_OF_TEXT)]
    generation = {"do_sample": False, "eos_token_id": stop_ids, "pad_token_id": stop_ids[1]}
    _write_json(directory / "generation_config.json", generation)


def load_checkpoint(directory: Path) -> tuple[Network, Tokenizer]:
    """Reads a checkpoint of this recipe back, as float32 on the CPU."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    shape = Shape(
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        intermediate_size=config["intermediate_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=config["num_attention_heads"],
        num_kv_heads=config["num_key_value_heads"],
        max_position_embeddings=config["max_position_embeddings"],
        rope_theta=config["rope_theta"],
        rms_norm_eps=config["rms_norm_eps"],
    )
    network = Network(shape)
    weights = load_file(directory / "model.safetensors")
    network.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    network.eval()
    return network, Tokenizer.from_file(str(directory / "tokenizer.json"))
