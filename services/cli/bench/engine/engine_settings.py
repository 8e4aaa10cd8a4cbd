"""The settings of an engine that is as long and as wide as a measurement needs."""

import argparse
from typing import Any

from services.cli.bench.engine.placed_model import PlacedModel
from shared.settings.groups import Settings
from shared.settings.load import changed, load_settings

ON_GPU = "high_throughput"
"""all requests are there at once: large steps cost nobody a gap, and vLLM's `LLM` takes them too"""
SPARE_BLOCKS = 2


def engine_settings(
    arguments: argparse.Namespace,
    placed: PlacedModel,
    longest: int,
    num_sequences: int,
    **more: Any,
) -> Settings:
    """`longest`: tokens of the longest sequence; `more`: settings beyond those of
    `add_model_flags`."""
    longest += SPARE_BLOCKS * arguments.block_size
    settings = load_settings(
        {
            "device": str(placed.device),
            "dtype": placed.dtype,
            "block_size": arguments.block_size,
            "max_model_len": min(longest, placed.choice.config.longest_len),
            "max_num_seqs": num_sequences,
            "gpu_memory_utilization": arguments.gpu_memory_utilization,
            **more,
        }
    )
    return settings if placed.device.type == "cpu" else changed(settings, profile=ON_GPU)
