"""An engine as a worker builds it."""

from typing import Literal

from shared.engine.build import build_engine
from shared.engine.engine import Engine
from shared.engine.layers.weights import WeightReader
from shared.model.checkpoint import load_checkpoint
from shared.settings.groups import Settings


def built_engine(
    settings: Settings,
    role: Literal["prefill", "decode"] = "decode",
    weights: type[WeightReader] = WeightReader,
) -> Engine:
    """Of the checkpoint that the settings name."""
    checkpoint = load_checkpoint(settings.model.name)
    return build_engine(*settings.of_engine, role, checkpoint, weights)
