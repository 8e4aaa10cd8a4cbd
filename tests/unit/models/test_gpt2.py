"""GPT-2's files in all their forms, and its row-independent norm and activation."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from shared.engine.layers.matrices import LayerNorm, gelu_tanh
from shared.errors import ModelError
from shared.model.checkpoint import Checkpoint, load_checkpoint
from tests.support.models.tiny_model import (
    TINY_GPT2,
    TinyRunner,
    model_of,
    random_weights,
    write_checkpoint,
)

CPU = torch.device("cpu")
PROMPT = [5, 7, 11, 13, 17]


def _save(path: Path, weights: dict[str, torch.Tensor], **config: Any) -> Checkpoint:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps({**TINY_GPT2, **config}), encoding="utf-8")
    save_file(weights, path / "model.safetensors")
    return load_checkpoint(str(path))


def _logits(checkpoint: Checkpoint) -> torch.Tensor:
    return TinyRunner(checkpoint, num_blocks=1, block_size=16).alone(PROMPT)


def test_prefixed_and_bare_names_and_saved_masks_are_one_model(tmp_path: Path) -> None:
    bare = random_weights(TINY_GPT2)
    prefixed = {"transformer." + name: weight for name, weight in bare.items()}
    masks = {
        "h.0.attn.bias": torch.ones(1, 1, 512, 512, dtype=torch.bool),
        "h.1.attn.masked_bias": torch.tensor(-1e4),
    }
    expected = _logits(write_checkpoint(tmp_path / "bare", TINY_GPT2))
    assert torch.equal(_logits(_save(tmp_path / "prefixed", prefixed)), expected)
    assert torch.equal(_logits(_save(tmp_path / "masks", bare | masks)), expected)


def test_an_untied_head_is_read_and_a_tied_ones_copy_is_not(tmp_path: Path) -> None:
    weights = random_weights(TINY_GPT2)
    expected = _logits(write_checkpoint(tmp_path / "tied", TINY_GPT2))
    weights["lm_head.weight"] = 2 * weights["wte.weight"]
    assert torch.equal(_logits(_save(tmp_path / "copy", weights)), expected)
    untied = _save(tmp_path / "untied", weights, tie_word_embeddings=False)
    assert torch.equal(_logits(untied), 2 * expected)


@pytest.mark.parametrize(
    ("name", "weight", "sentence"),
    [
        ("h.1.attn.c_attn.weight", torch.zeros(288, 96), r"has shape \[288, 96\].*\[96, 288\]"),
        ("wpe.weight", torch.zeros(1024, 96), r"wpe.weight has shape \[1024, 96\]"),
        ("h.0.mlp.c_fc.bias", None, "h.0.mlp.c_fc.bias is missing"),
        ("h.2.ln_1.weight", torch.zeros(96), "1 tensors have no place in a GPT2LMHeadModel"),
    ],
)
def test_what_does_not_fit_ends_the_start(
    name: str, weight: torch.Tensor | None, sentence: str, tmp_path: Path
) -> None:
    weights = random_weights(TINY_GPT2)
    if weight is None:
        del weights[name]
    else:
        weights[name] = weight
    with pytest.raises(ModelError, match=sentence):
        model_of(_save(tmp_path, weights), 64)


def test_activation_and_norm_of_a_row_do_not_depend_on_the_others() -> None:
    """A width that no vector divides: the plain call is the mutant, and it is found."""
    rows = torch.randn(64, 203, generator=torch.Generator().manual_seed(0))
    norm = LayerNorm(torch.rand(203), torch.rand(203), 1e-5)
    for function, found in (
        (gelu_tanh, False),
        (norm, False),
        (lambda part: F.gelu(part, approximate="tanh"), True),
    ):
        together = function(rows)
        parts = torch.cat([function(rows[start : start + 1]) for start in range(64)])
        assert torch.equal(parts, together) != found
    torch.testing.assert_close(gelu_tanh(rows), F.gelu(rows, approximate="tanh"))
