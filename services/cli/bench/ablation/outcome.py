"""All that a run came to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from services.cli.bench.ablation.figures import Figures
from services.cli.bench.ablation.history import Run
from services.cli.bench.ablation.load import Load
from services.cli.bench.ablation.report import row_record
from services.cli.bench.ablation.row import Factor, Row, factors
from services.cli.bench.engine.placed_model import PlacedModel
from shared.release import release
from shared.settings.groups import Settings


@dataclass(frozen=True)
class Outcome:
    """What was asked, and the rows."""

    placed: PlacedModel
    settings: Settings
    load: Load
    rows: Sequence[Row]
    usd_per_gpu_hour: float
    """0: not given"""

    @cached_property
    def figures(self) -> Mapping[str, Figures]:
        """By row. The first one's tokens are the reference."""
        price = self.usd_per_gpu_hour
        return {row.name: Figures.of(row, self.rows[0], price) for row in self.rows}

    @cached_property
    def factors(self) -> Sequence[Factor]:
        return factors(self.rows, self.load.width)

    @property
    def load_record(self) -> dict[str, Any]:
        load = self.load
        return {
            "requests": load.num_requests,
            "batch": load.width,
            "shared_tokens": load.num_shared,
            "own_tokens": load.num_own,
            "output_tokens": list(load.output),
        }

    def records(self) -> list[dict[str, Any]]:
        """JSON lines."""
        lines = [row_record(row, self.figures[row.name], self.rows[0]) for row in self.rows]
        return lines + [factor.record() for factor in self.factors]

    def run(self) -> Run:
        """Its line of the history; it ended just now."""
        placed, settings = self.placed, self.settings
        conditions = {
            "dtype": placed.dtype,
            "random_weights": placed.choice.random_weights,
            "block_size": settings.kv.block_size,
            "threads": settings.engine.threads,
        }
        return Run(
            date=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            release=release(),
            device=placed.facts.name,
            model=placed.choice.name,
            conditions=conditions | self.load_record,
            rows={name: figures.record() for name, figures in self.figures.items()},
            factors={factor.name: round(factor.value, 4) for factor in self.factors},
        )
