"""What one run of `baton bench engine` does, decided before anything is loaded."""

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from services.cli.bench.engine.cells import Cell, OfflineCell, cells_of, chosen
from services.cli.bench.engine.engine_settings import engine_settings
from services.cli.bench.engine.figures.attention import (
    ATTENTION_CELLS,
    MODELS,
    AttentionCell,
)
from services.cli.bench.engine.figures.device_facts import DeviceFacts
from services.cli.bench.engine.figures.known import Known, known_figure
from services.cli.bench.engine.model_choice import ModelChoice
from services.cli.bench.engine.placed_model import PlacedModel
from services.cli.bench.engine.steps.decode_profile import Profiled, profiled
from services.cli.bench.engine.steps.step_prediction import StepPredictionCell
from services.cli.bench.engine.steps.worker_step import WorkerStepCell
from shared.model.model_size import ModelSize
from shared.settings.groups import Settings

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
        placed = PlacedModel.of(choice, arguments.device, arguments.dtype, arguments.tp)
        device = placed.device
        wanted = _wanted(arguments, choice, device.type)
        cells = [cell for cell in wanted if isinstance(cell, Cell)]
        predictions = _of_kind(StepPredictionCell, wanted)
        traces = _profiled(arguments, cells, device.type)
        return cls(
            arguments=arguments,
            choice=choice,
            device=device,
            dtype=placed.dtype,
            size=placed.size,
            facts=placed.facts,
            attention=_of_kind(AttentionCell, wanted),
            worker_steps=_of_kind(WorkerStepCell, wanted),
            predictions=predictions,
            cells=tuple(cells),
            profiled=tuple(traces),
            settings=_settings(arguments, placed, [*cells, *traces, *predictions]),
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
    placed: PlacedModel,
    decodes: Sequence[Cell | Profiled | StepPredictionCell],
) -> Settings:
    """An engine as long and as wide as the cells need."""
    return engine_settings(
        arguments,
        placed,
        longest=max((cell.longest for cell in decodes), default=1),
        num_sequences=max((cell.num_sequences for cell in decodes), default=1),
        tp=arguments.tp,
        max_num_batched_tokens=arguments.max_num_batched_tokens,
        prefix_cache=arguments.prefix_cache,
        eager=arguments.eager,
    )
