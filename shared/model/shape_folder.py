"""The folder that a shape is served from: config and text files, no weights.

Workers draw the weights (shared.engine.layers.random_weights), so a shape costs a few MiB of disk.
Its text is the demo model's: same template, same tokens; ids beyond them, which only a model
samples or a client sends, read as ` #12345`, so that every token of an answer has a text of its
own.
There is no end-of-sequence id: an answer has the length that was asked for.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared.made_folder import made_folder
from shared.model.files import TOKENIZER, TOKENIZER_CONFIG
from shared.model.shapes import SHAPES


def shape_folder(name: str, cache_dir: Path, text_from: Path) -> Path:
    """The folder of SHAPES[name], made on first use; safe when processes race.

    `text_from`: a checkpoint with a byte-level tokenizer that is not larger than the shape's.
    """
    raw = SHAPES[name]
    contents = {
        "config.json": json.dumps(dict(raw)),
        TOKENIZER: json.dumps(_padded(text_from, raw["vocab_size"])),
        TOKENIZER_CONFIG: (text_from / TOKENIZER_CONFIG).read_text(encoding="utf-8"),
    }
    digest = hashlib.sha256("".join(contents.values()).encode()).hexdigest()[:12]
    return made_folder(cache_dir / f"shape-{name}-{digest}", lambda path: _write(path, contents))


def _padded(text_from: Path, vocab_size: int) -> Mapping[str, Any]:
    """The tokenizer with a token for every id; no text is ever encoded to those added."""
    tokenizer: dict[str, Any] = json.loads((text_from / TOKENIZER).read_text(encoding="utf-8"))
    vocab: dict[str, int] = tokenizer["model"]["vocab"]
    added = {item["id"] for item in tokenizer["added_tokens"]}
    free = set(range(vocab_size)).difference(vocab.values(), added)
    vocab.update({f"Ġ#{token_id}": token_id for token_id in sorted(free)})
    return tokenizer


def _write(path: Path, contents: Mapping[str, str]) -> None:
    for name, text in contents.items():
        (path / name).write_text(text, encoding="utf-8")
