"""What one run of `baton bench engine` does, decided before anything is loaded."""

import argparse
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from services.cli.bench.engine.cells import Cell, OfflineCell, cells_of, chosen
from services.cli.bench.engine.figures.attention import (
    ATTENTION_CELLS,
    MODELS,
    AttentionCell,
)
from services.cli.bench.engine.figures.ceilings import DeviceFacts
from services.cli.bench.engine.figures.known import Known, known_figure
from services.cli.bench.engine.figures.model_size import ModelSize
from services.cli.bench.engine.model_choice import ModelChoice
from services.cli.bench.engine.steps.decode_profile import Profiled, profiled
from services.cli.bench.engine.steps.step_prediction import StepPredictionCell
from services.cli.bench.engine.steps.worker_step import WorkerStepCell
from shared.engine.layers.shard import Shard
from shared.engine.loading.devices import resolve_device
from shared.errors import MissingError
from shared.model.checkpoint import resolve_dtype
from shared.settings.groups import Settings
from shared.settings.load import changed, load_settings

CPU_FACTOR = 1.25
"""memory of a CPU that loading takes, over the weights'"""
GPU_STEP_TOKENS = 8192
"""all requests are there at once: large steps cost nobody a gap, and vLLM's `LLM` takes them too"""
SPARE_BLOCKS = 2
PROFILED_PROMPT = 1024

CellT = TypeVar("CellT")


@dataclass(frozen=True)
class BenchPlan:
    """A model on a device, the cells, and the engine's settings."""

    arguments: argparse.Namespace
    choice: ModelChoice
    device: torch.device
    dtype: str
    size: ModelSize
    facts: DeviceFacts
    attention: tuple[AttentionCell, ...]
    """kernels by themselves, before the engine has the device"""
    worker_steps: tuple[WorkerStepCell, ...]
    """the host by itself, of a worker's loop without a model"""
    predictions: tuple[StepPredictionCell, ...]
    """of the engine's own steps, before the cells"""
    cells: tuple[Cell, ...]
    profiled: tuple[Profiled, ...]
    """decodes that are traced after the cells"""
    settings: Settings

    @classmethod
    def of(cls, arguments: argparse.Namespace, choice: ModelChoice) -> "BenchPlan":
        """SettingsError, ModelError or MissingError say why it cannot be."""
        device = resolve_device(arguments.device)
        resolve_device(arguments.device, arguments.tp - 1)
        Shard(choice.config, 0, arguments.tp)
        dtype = resolve_dtype(arguments.dtype, choice.config, device.type)
        size = ModelSize.of(choice.config, dtype, arguments.tp)
        _check_memory(choice.name, size.weight_bytes * arguments.tp, device)
        wanted = _wanted(arguments, choice, device.type)
        cells = [cell for cell in wanted if isinstance(cell, Cell)]
        predictions = _of_kind(StepPredictionCell, wanted)
        traces = _profiled(arguments, cells, device.type)
        place = {"device": str(device), "dtype": dtype}
        return cls(
            arguments=arguments,
            choice=choice,
            device=device,
            dtype=dtype,
            size=size,
            facts=DeviceFacts.of(device),
            attention=_of_kind(AttentionCell, wanted),
            worker_steps=_of_kind(WorkerStepCell, wanted),
            predictions=predictions,
            cells=tuple(cells),
            profiled=tuple(traces),
            settings=_settings(arguments, choice, [*cells, *traces, *predictions], place),
        )

    @property
    def step_tokens(self) -> int:
        """Tokens a step may compute."""
        return self.settings.engine.tokens_per_step(self.device.type)

    def known(self, cell: Cell) -> Known | None:
        """What is known of others; fewer requests at once would be another figure."""
        arguments = self.arguments
        if not self.choice.random_weights or (arguments.quick and isinstance(cell, OfflineCell)):
            return None
        name = self.choice.name
        return known_figure(name, cell.name, self.facts.name, tp_size=arguments.tp)


def _wanted(
    arguments: argparse.Namespace, choice: ModelChoice, device_type: str
) -> list[AttentionCell | WorkerStepCell | StepPredictionCell | Cell]:
    """What --cells names, of what the model is long enough for."""
    longest = choice.config.longest_len
    is_baton = arguments.engine == "baton"
    apart = ATTENTION_CELLS if device_type == "cuda" and choice.name in MODELS else ()
    there = [cell for cell in cells_of(choice.name, device_type) if cell.longest <= longest]
    patterns = arguments.cells.split(",") if arguments.cells is not None else []
    wanted = chosen(
        [
            *(apart if is_baton else ()),
            *there,
            *([WorkerStepCell()] if is_baton else ()),
            # By its name only: it wants a longer and wider engine than the other cells.
            *([StepPredictionCell.of(device_type, longest)] if is_baton and patterns else ()),
        ],
        patterns,
    )
    if not arguments.quick:
        return wanted
    return [cell if isinstance(cell, AttentionCell) else cell.quick() for cell in wanted]


def _of_kind(kind: type[CellT], cells: Iterable[object]) -> tuple[CellT, ...]:
    return tuple(cell for cell in cells if isinstance(cell, kind))


def _profiled(arguments: argparse.Namespace, cells: list[Cell], device_type: str) -> list[Profiled]:
    if arguments.profile is None or not cells:
        return []
    length = min(PROFILED_PROMPT, max(cell.num_prompt for cell in cells))
    return profiled(device_type, length, arguments.scrape_hz)


def _settings(
    arguments: argparse.Namespace,
    choice: ModelChoice,
    decodes: Sequence[Cell | Profiled | StepPredictionCell],
    place: dict[str, str],
) -> Settings:
    """An engine as long and as wide as the cells need."""
    longest = max((cell.longest for cell in decodes), default=1)
    longest += SPARE_BLOCKS * arguments.block_size
    settings = load_settings(
        {
            **place,
            "tp": arguments.tp,
            "block_size": arguments.block_size,
            "max_model_len": min(longest, choice.config.longest_len),
            "max_num_batched_tokens": arguments.max_num_batched_tokens,
            "max_num_seqs": max((cell.num_sequences for cell in decodes), default=1),
            "gpu_memory_utilization": arguments.gpu_memory_utilization,
            "prefix_cache": arguments.prefix_cache,
            "eager": arguments.eager,
        }
    )
    if settings.engine.max_num_batched_tokens or place["device"] == "cpu":
        return settings
    return changed(settings, max_num_batched_tokens=GPU_STEP_TOKENS)


def _check_memory(name: str, weight_bytes: int, device: torch.device) -> None:
    """Of all ranks. Rather than a machine that swaps."""
    need = CPU_FACTOR * weight_bytes
    have = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if device.type == "cpu" and need > have:
        raise MissingError(
            f"{name} on a CPU takes {need / 1e9:.0f} GB and this machine has {have / 1e9:.0f}; "
            "it needs a GPU"
        )
