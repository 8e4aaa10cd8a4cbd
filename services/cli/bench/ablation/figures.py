"""The five figures that a row is judged by, and how they are shown."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Any, NamedTuple

from services.cli.bench.ablation.row import Row
from shared.telemetry.cost import usd_per_million


@dataclass(frozen=True)
class Figures:
    """Throughput, latency, memory, quality and cost of one row."""

    tok_s: float
    """tokens a second, all sequences together"""
    ms_per_token: float
    """from a token of an answer to its next, on average"""
    kv_bytes: int
    """of KV, at most, from one step to the next"""
    quality: float
    """share of tokens that are those of the reference row at the same place"""
    usd_per_million_tokens: float | None
    """None: no price was given"""

    @classmethod
    def of(cls, row: Row, reference: Row, usd_per_gpu_hour: float) -> "Figures":
        """`usd_per_gpu_hour`: of the one device that computes; 0: not given."""
        rate = row.tokens_a_second
        usd = usd_per_million(usd_per_gpu_hour, rate) if usd_per_gpu_hour else None
        return cls(
            tok_s=round(rate, 2),
            ms_per_token=round(row.gap_s * 1e3, 4),
            kv_bytes=row.kept_bytes,
            quality=quality(row, reference),
            usd_per_million_tokens=None if usd is None else round(usd, 6),
        )

    def record(self) -> dict[str, Any]:
        """Its members of a JSON line."""
        return asdict(self)


def quality(row: Row, reference: Row) -> float:
    """A token that one of the two lacks is not equal. Rounded down, so that 1 means all."""
    num_same = num_all = 0
    for ours, theirs in zip_longest(row.token_ids, reference.token_ids, fillvalue=()):
        num_same += sum(one == other for one, other in zip(ours, theirs, strict=False))
        num_all += max(len(ours), len(theirs))
    return math.floor(num_same / num_all * 1e6) / 1e6


class Column(NamedTuple):
    """A figure in the table and in the picture."""

    field: str
    """of Figures"""
    name: str
    unit: str
    title: str
    """of its panel"""
    shown: Callable[[float], str]
    more_is_better: bool

    @property
    def head(self) -> str:
        return f"{self.name}, {self.unit}" if self.unit else self.name

    def value(self, figures: Figures) -> float | None:
        found: float | None = getattr(figures, self.field)
        return found

    def cell(self, figures: Figures) -> str:
        value = self.value(figures)
        return "-" if value is None else self.shown(value)


def _share(value: float) -> str:
    """With three digits, rounded down."""
    return f"{math.floor(value * 1e3) / 1e3:.3f}"


COLUMNS = (
    Column(
        "tok_s",
        "throughput",
        "tok/s",
        "Throughput: tokens a second, all sequences together",
        "{:,.1f}".format,
        True,
    ),
    Column(
        "ms_per_token",
        "latency",
        "ms/token",
        "Latency: from token to token of one sequence",
        "{:,.3f}".format,
        False,
    ),
    Column(
        "kv_bytes",
        "memory",
        "bytes of KV",
        "Memory: most KV from one step to the next",
        "{:,.0f}".format,
        False,
    ),
    Column(
        "quality",
        "quality",
        "",
        "Quality: share of tokens as without batch and KV",
        _share,
        True,
    ),
    Column(
        "usd_per_million_tokens",
        "cost",
        "USD/M tokens",
        "Cost: of a million tokens",
        "{:,.4g}".format,
        False,
    ),
)
