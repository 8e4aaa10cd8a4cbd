"""What is measured of a model: a cell is one entry of one table of figures."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Protocol, TypeVar

from shared.errors import SettingsError

QUICK_STEPS, QUICK_SHARE = 32, 8
SMALL_BELOW = 40_000
"""prompt tokens"""


@dataclass(frozen=True)
class DecodeCell:
    """Time per output token of sequences that start together: the time of `num_steps` + 1 tokens
    less the time of one, per step."""

    name: str
    num_sequences: int
    num_prompt: int
    num_steps: int = 256

    @property
    def longest(self) -> int:
        return self.num_prompt + self.num_steps + 1

    @property
    def num_tokens(self) -> int:
        return self.num_sequences * self.longest

    @property
    def is_small(self) -> bool:
        """Cheap enough to be run several times."""
        return self.num_sequences * self.num_prompt < SMALL_BELOW

    @property
    def mean_context(self) -> float:
        """Positions a sequence attends to in a decode step."""
        return self.num_prompt + (self.num_steps + 1) / 2

    def quick(self) -> "DecodeCell":
        return replace(self, num_steps=min(self.num_steps, QUICK_STEPS))


@dataclass(frozen=True)
class PrefillCell:
    """One prompt alone, from its arrival to its first token."""

    name: str
    num_prompt: int
    num_rounds: int = 3
    num_sequences: int = 1

    @property
    def longest(self) -> int:
        return self.num_prompt + 1

    @property
    def num_tokens(self) -> int:
        return self.longest

    def quick(self) -> "PrefillCell":
        return replace(self, num_rounds=1)


@dataclass(frozen=True)
class OfflineCell:
    """All requests are there at once; how many tokens a second until all have their answers.
    Without `num_output` lengths are mixed, up to `num_prompt`."""

    name: str
    num_sequences: int
    num_prompt: int
    num_output: int = 0

    @property
    def longest(self) -> int:
        return self.num_prompt + (self.num_output or self.num_prompt)

    @property
    def num_tokens(self) -> int:
        """At most; where not all fit, some wait."""
        return self.longest

    def quick(self) -> "OfflineCell":
        return replace(self, num_sequences=max(1, self.num_sequences // QUICK_SHARE))


Cell = DecodeCell | PrefillCell | OfflineCell

LARGE: tuple[Cell, ...] = (
    DecodeCell("tpot-1", 1, 1024),
    DecodeCell("tpot-32", 32, 1024),
    DecodeCell("tpot-128", 128, 1024),
    DecodeCell("tpot-256", 256, 1024),
    DecodeCell("tpot-64-4k", 64, 4026),
    PrefillCell("prefill-1k", 1024),
    PrefillCell("prefill-8k", 8192),
    PrefillCell("prefill-32k", 32768),
    OfflineCell("offline", 512, 1024, 128),
)
SMALL: tuple[Cell, ...] = (
    DecodeCell("tpot-1", 1, 1000),
    DecodeCell("tpot-32", 32, 1000),
    DecodeCell("tpot-128", 128, 1000),
    DecodeCell("tpot-256", 256, 1000),
    OfflineCell("offline-mixed", 256, 1024),
)
HUGE: tuple[Cell, ...] = (DecodeCell("tpot-1", 1, 1024), DecodeCell("tpot-32", 32, 1024))
CPU: tuple[Cell, ...] = (
    DecodeCell("tpot-1", 1, 48, 16),
    DecodeCell("tpot-4", 4, 48, 16),
    PrefillCell("prefill-64", 64),
    PrefillCell("prefill-128", 128),
    OfflineCell("offline", 8, 48, 8),
    OfflineCell("offline-mixed", 8, 32),
)
"""seconds on two cores, for a model of a few million parameters"""

BY_MODEL = {"qwen3-0.6b": SMALL, "llama-3.1-70b-40-layers": HUGE}


def cells_of(model: str, device_type: str) -> tuple[Cell, ...]:
    """The cells of the tables, or smaller ones of the same kinds on a CPU."""
    return CPU if device_type == "cpu" else BY_MODEL.get(model, LARGE)


class Named(Protocol):
    """What --cells can name."""

    @property
    def name(self) -> str:
        """As the figures have it."""


NamedT = TypeVar("NamedT", bound=Named)


def chosen(cells: Sequence[NamedT], patterns: Sequence[str]) -> list[NamedT]:
    """Those whose names match one of the patterns, all without any; SettingsError for a pattern
    that matches none."""
    for pattern in patterns:
        if not any(fnmatchcase(cell.name, pattern) for cell in cells):
            names = ", ".join(cell.name for cell in cells)
            raise SettingsError(f"--cells {pattern}: no such cell; there are {names}")
    return [
        cell
        for cell in cells
        if not patterns or any(fnmatchcase(cell.name, pattern) for pattern in patterns)
    ]
