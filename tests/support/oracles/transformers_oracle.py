"""Random models of transformers, saved as its tools save them, and their greedy answers."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from shared.engine.layers.rope import inverse_frequencies
from shared.model.checkpoint import load_checkpoint

VOCAB_SIZE = 512
STD = 0.2
LLAMA = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 136,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "head_dim": 16,
}
GPT2 = {
    "vocab_size": VOCAB_SIZE,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 512,
}
CLASSES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM, LLAMA),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM, LLAMA),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM, LLAMA),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM, LLAMA),
    "gpt2": (transformers.GPT2Config, transformers.GPT2LMHeadModel, GPT2),
}


@dataclass(frozen=True)
class Case:
    """One checkpoint to compare on."""

    family: str
    overrides: dict[str, Any] = field(default_factory=dict)
    old_form: bool = False
    """config.json, and for GPT-2 the tensors' names, as older tools wrote them"""
    shards: bool = False
    max_model_len: int = 0
    """0: the model's own"""
    seed: int = 0
    """of the weights; some seeds give a model that says little else than one token"""
    our_frequencies: bool = False
    """the oracle takes our rotary frequencies, for what transformers recomputes per length"""


@dataclass(frozen=True)
class Answer:
    """What greedy decoding gave."""

    token_ids: list[int]
    logprobs: list[float]
    smallest_gap: float = 0.0
    """between the two best logits, over all positions"""


def random_oracle(case: Case, path: Path) -> Any:
    """A model with weights of std STD, norms around one, saved to `path` as the case says."""
    config_type, model_type, arguments = CLASSES[case.family]
    config = config_type(**{**arguments, **case.overrides})
    config._attn_implementation = "eager"
    torch.manual_seed(case.seed)
    model = model_type(config).eval()
    for name, parameter in model.named_parameters():
        is_norm = "norm" in name or ".ln_" in name
        mean = float(is_norm and name.endswith("weight"))
        torch.nn.init.normal_(parameter, mean=mean, std=STD)
    model.save_pretrained(path, max_shard_size="150KB" if case.shards else "1GB")
    assert (path / "model.safetensors.index.json").exists() == case.shards
    if case.old_form:
        _rewrite_config(path / "config.json")
    if case.old_form and case.family == "gpt2":
        _rewrite_gpt2_weights(path / "model.safetensors")
    if case.our_frequencies:
        ours = load_checkpoint(str(path)).config
        assert ours.rope is not None
        rotary = model.model.rotary_emb
        rotary.rope_type = "default"  # else it recomputes them
        rotary.inv_freq.copy_(inverse_frequencies(ours.rope, ours.head_dim, case.max_model_len))
    return model


@torch.inference_mode()
def oracle_answer(
    oracle: Any, prompt: list[int], num_tokens: int, guess: Sequence[int] = ()
) -> Answer:
    """Greedy tokens of the prompt alone. A right guess of all of them saves time: the oracle's
    choices behind every beginning of it come from one look at the whole. A wrong one changes
    nothing, the tokens are then chosen one by one."""
    if len(guess) == num_tokens:
        ids = torch.tensor([[*prompt, *guess[:-1]]])
        answer = _chosen(oracle(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 :])
        if answer.token_ids == list(guess):
            return answer
    rows = []
    ids, cache = torch.tensor([prompt]), None
    for _ in range(num_tokens):
        output = oracle(input_ids=ids, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        rows.append(output.logits[0, -1])
        ids = rows[-1].argmax().reshape(1, 1)
    return _chosen(torch.stack(rows))


def _chosen(logits: torch.Tensor) -> Answer:
    """The best token of each row."""
    best = logits.topk(2)
    token_ids = best.indices[:, 0]
    logprobs = logits.log_softmax(-1).gather(1, token_ids[:, None])[:, 0]
    gap = (best.values[:, 0] - best.values[:, 1]).min()
    return Answer(token_ids.tolist(), logprobs.tolist(), float(gap))


def _rewrite_config(path: Path) -> None:
    """config.json as transformers 4 wrote it."""
    config = json.loads(path.read_text(encoding="utf-8"))
    config["torch_dtype"] = config.pop("dtype")
    config.pop("layer_types", None)
    rope = config.pop("rope_parameters", None)
    if rope is not None:
        config["rope_theta"] = rope.pop("rope_theta")
        if rope["rope_type"] in ("linear", "dynamic"):
            rope["type"] = rope.pop("rope_type")
        config["rope_scaling"] = None if rope.get("rope_type") == "default" else rope
    path.write_text(json.dumps(config), encoding="utf-8")


def _rewrite_gpt2_weights(path: Path) -> None:
    """Names of the bare model, and the causal masks that old files carry."""
    weights = load_file(path)
    bare = {name.removeprefix("transformer."): weight for name, weight in weights.items()}
    for layer in range(GPT2["n_layer"]):
        bare[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 512, 512).tril()
    save_file(bare, path)
