"""Layers of real size in bfloat16 are as near to float32 as transformers' own bfloat16 is."""

from pathlib import Path
from typing import Any

import pytest
import torch

from shared.engine.layers.random_weights import RandomWeights
from shared.kv.layout import num_blocks_for
from shared.model.checkpoint import Checkpoint, random_checkpoint
from shared.model.shapes import SHAPES
from tests.gpu.device_model import device_runner
from tests.support.models.tiny_model import Rows, hand_made_batch

MOST_OF_THEIRS = 1.25
NUM_LAYERS = 4
LENGTH = 700
NUM_SEQUENCES = 5
BLOCK_SIZE = 16
MODELS = ("llama-3.1-8b", "qwen3-8b", "qwen3-0.6b")


def make_checkpoint(name: str) -> tuple[Checkpoint, dict[str, Any]]:
    raw = {**SHAPES[name], "num_hidden_layers": NUM_LAYERS, "max_position_embeddings": 8192}
    return random_checkpoint(Path(name), name, raw), raw


def their_logits(
    checkpoint: Checkpoint, raw: dict[str, Any], token_ids: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """f32[B, L, V] of transformers' model with the same bfloat16 weights."""
    import transformers  # noqa: PLC0415  (collected where it is not installed)

    config = transformers.AutoConfig.for_model(**raw)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    weights = {}
    with RandomWeights(checkpoint, torch.bfloat16, torch.device("cuda")) as reader:
        for key, parameter in model.named_parameters():
            weights[key] = reader.tensor(key, *parameter.shape).to(dtype)
    if raw["tie_word_embeddings"]:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).to("cuda")
    model.load_state_dict(weights)
    model.eval()
    with torch.inference_mode():
        return torch.stack([model(row[None]).logits[0].float() for row in token_ids])


def relative_error(logits: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((logits.double() - wanted.double()).norm() / wanted.double().norm())


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_as_near_to_float32_as_those_of_transformers(name: str) -> None:
    torch.set_float32_matmul_precision("highest")
    checkpoint, raw = make_checkpoint(name)
    generator = torch.Generator(device="cuda").manual_seed(1)
    vocab_size = raw["vocab_size"]
    token_ids = torch.randint(
        vocab_size, (NUM_SEQUENCES, LENGTH), generator=generator, device="cuda"
    )
    wanted = their_logits(checkpoint, raw, token_ids, torch.float32)
    theirs = their_logits(checkpoint, raw, token_ids, torch.bfloat16)
    prefill, decode = our_logits(checkpoint, token_ids)
    first = wanted[0, : LENGTH - 1]
    allowed = MOST_OF_THEIRS * relative_error(theirs[0, : LENGTH - 1], first)
    assert 0 < relative_error(prefill, first) <= allowed
    last = wanted[:, -1]
    allowed = MOST_OF_THEIRS * relative_error(theirs[:, -1], last)
    assert 0 < relative_error(decode, last) <= allowed
    assert relative_error(decode.roll(1, 0), last) > allowed


def our_logits(
    checkpoint: Checkpoint, token_ids: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the first prompt but its last token, in two chunks; then of all last tokens, decoded
    twice, the second time by a captured graph."""
    width = num_blocks_for(LENGTH, BLOCK_SIZE)
    runner = device_runner(
        checkpoint,
        num_blocks=NUM_SEQUENCES * width,
        dtype="bfloat16",
        weights=RandomWeights,
        max_sequences=LENGTH,
    )
    rows = token_ids.tolist()

    def step(start: int, end: int, sequences: range, *, all_rows: bool) -> torch.Tensor:
        steps = [
            Rows(rows[index], start, end, range(index * width, (index + 1) * width))
            for index in sequences
        ]
        batch = hand_made_batch(steps, BLOCK_SIZE, all_rows=all_rows)
        return runner.run(batch).float().clone()

    border = 300
    parts = [
        step(0, border, range(1), all_rows=True),
        step(border, LENGTH - 1, range(1), all_rows=True),
    ]
    for index in range(1, NUM_SEQUENCES):
        step(0, LENGTH - 1, range(index, index + 1), all_rows=False)
    decoded = [step(LENGTH - 1, LENGTH, range(NUM_SEQUENCES), all_rows=False) for _ in range(3)]
    assert torch.equal(decoded[0], decoded[2])
    return torch.cat(parts), decoded[2]
