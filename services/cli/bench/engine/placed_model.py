"""A model on a device, before anything of it is loaded."""

import os
from dataclasses import dataclass

import torch

from services.cli.bench.engine.figures.device_facts import DeviceFacts
from services.cli.bench.engine.model_choice import ModelChoice
from shared.engine.layers.shard import Shard
from shared.engine.loading.devices import resolve_device
from shared.errors import MissingError
from shared.model.checkpoint import resolve_dtype
from shared.model.model_size import ModelSize

CPU_FACTOR = 1.25
"""memory of a CPU that loading takes, over the weights'"""


@dataclass(frozen=True)
class PlacedModel:
    """What it takes there, and what the device is."""

    choice: ModelChoice
    device: torch.device
    dtype: str
    size: ModelSize
    facts: DeviceFacts

    @classmethod
    def of(cls, choice: ModelChoice, device_name: str, dtype: str, tp: int = 1) -> "PlacedModel":
        """SettingsError, ModelError or MissingError say why it cannot be."""
        device = resolve_device(device_name)
        resolve_device(device_name, tp - 1)
        Shard(choice.config, 0, tp)
        dtype = resolve_dtype(dtype, choice.config, device.type)
        size = ModelSize.of(choice.config, dtype, tp)
        _check_memory(choice.name, size.weight_bytes * tp, device)
        return cls(choice, device, dtype, size, DeviceFacts.of(device))


def _check_memory(name: str, weight_bytes: int, device: torch.device) -> None:
    """Of all ranks. Rather than a machine that swaps."""
    need = CPU_FACTOR * weight_bytes
    have = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if device.type == "cpu" and need > have:
        raise MissingError(
            f"{name} on a CPU takes {need / 1e9:.0f} GB and this machine has {have / 1e9:.0f}; "
            "it needs a GPU"
        )
