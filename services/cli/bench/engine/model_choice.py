"""Which model a benchmark runs, and where its config comes from."""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.errors import ModelError
from shared.model.checkpoint import (
    DEMO,
    Checkpoint,
    load_checkpoint,
    random_checkpoint,
    resolve_model,
)
from shared.model.config import ModelConfig
from shared.model.shapes import SHAPES


@dataclass(frozen=True)
class ModelChoice:
    """One model; its weights may be random."""

    name: str
    raw: dict[str, Any]
    """its config.json"""
    checkpoint: Checkpoint
    random_weights: bool

    @property
    def config(self) -> ModelConfig:
        return self.checkpoint.config

    def config_folder(self, folder: Path) -> Path:
        """Where other engines find config.json: its own directory, or `folder`, where it is
        written."""
        if self.checkpoint.path.is_dir():
            return self.checkpoint.path
        (folder / "config.json").write_text(json.dumps(self.raw), encoding="utf-8")
        return folder


def add_model_flags(parser: argparse.ArgumentParser, dtype: str = "auto") -> None:
    """Of every benchmark that runs an engine; `dtype`: the default."""
    add = parser.add_argument
    models = f"checkpoint directory, hub id, demo, or a shape: {', '.join(SHAPES)}"
    add("--model", default=DEMO, help=f"{models}; demo")
    add("--random-weights", action="store_true", help="draw the weights; needs config.json only")
    add("--device", default="auto", help="auto, cpu, cuda or cuda:N; on a CPU cells are small")
    dtypes = ("auto", "float32", "bfloat16", "float16")
    add("--dtype", default=dtype, choices=dtypes, help=f"default: {dtype}")
    add("--block-size", type=int, default=16, metavar="N", help="positions per KV block; 16")
    add(
        "--gpu-memory-utilization",
        type=float,
        default=0.9,
        metavar="SHARE",
        help="of the GPU's memory; 0.9",
    )


def choose_model(model: str, *, random_weights: bool) -> ModelChoice:
    """A shape by name, or a checkpoint (directory, hub id, demo), of which random weights need
    config.json alone. ModelError or MissingError say why not."""
    if model in SHAPES and random_weights:
        return _random(model, dict(SHAPES[model]), Path(model))
    if not random_weights:
        checkpoint = load_checkpoint(model)
        return ModelChoice(checkpoint.name, _read(checkpoint.path), checkpoint, False)
    try:
        path = resolve_model(model)
    except ModelError as error:
        raise ModelError(f"{error}; shapes are {', '.join(SHAPES)}") from None
    return _random(DEMO if model == DEMO else path.resolve().name, _read(path), path)


def _random(name: str, raw: dict[str, Any], path: Path) -> ModelChoice:
    return ModelChoice(name, raw, random_checkpoint(path, name, raw), True)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path / 'config.json'}: cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise ModelError(f"{path / 'config.json'}: not a JSON object")
    return content
