"""How each row moved against earlier runs. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.cli.bench.ablation.figures import COLUMNS, Column
from services.cli.bench.ablation.history import Run
from services.cli.bench.ablation.table import aligned

MOVED = COLUMNS[:3]
"""throughput, latency and memory: cost moves as the throughput does, and quality does not"""
ONE_RUN = (
    "one run is no proof: speeds of equal runs differ too, by tens of per cent where others use "
    "the machine; run it again before a change counts"
)


@dataclass(frozen=True)
class Movement:
    """Of one figure of one row; 0.05: it is 5 % more."""

    row: str
    column: Column
    last: float | None
    """against the last run; None: it had no such row, or 0 there"""
    best: float | None
    """against the best of all"""

    def record(self) -> dict[str, Any]:
        """Its JSON line."""
        names = {"kind": "movement", "name": self.row, "figure": self.column.field}
        return names | {"against_last": _rounded(self.last), "against_best": _rounded(self.best)}


class Movements:
    """Of a run against those before it of the same model, device and conditions."""

    def __init__(self, run: Run, runs: Sequence[Run]) -> None:
        """`runs`: all that the history has, in order."""
        same = [each for each in runs if each.has_place_of(run)]
        self._run = run
        self._earlier = [each for each in same if each.is_like(run)]
        self._num_unlike = len(same) - len(self._earlier)

    def all(self) -> list[Movement]:
        """By row, then by figure; none without an earlier run."""
        if not self._earlier:
            return []
        return [self._movement(row, column) for row in self._run.rows for column in MOVED]

    @property
    def text(self) -> str:
        """For a terminal."""
        where = f"{self._run.model} on {self._run.device}"
        head, table = f"the first run of {where} with this load in the history\n", ""
        if self._earlier:
            last, num = self._earlier[-1], len(self._earlier)
            head = (
                f"against the last of {num} run{'s' * (num > 1)} of {where} ({last.date}, release "
                f"{last.release}), and against the best figure of all:\n"
            )
            table = f"{aligned(self._cells())}{ONE_RUN}\n"
        if self._num_unlike:
            head += f"not compared: {self._num_unlike} with another load, type or block size\n"
        return head + table

    def _cells(self) -> list[tuple[str, ...]]:
        cells = [("", *(name for column in MOVED for name in (column.name, "best")))]
        for row in self._run.rows:
            found = [self._movement(row, column) for column in MOVED]
            cells.append((row, *(_shown(share) for one in found for share in (one.last, one.best))))
        return cells

    def _movement(self, row: str, column: Column) -> Movement:
        now = _valid(self._run.rows[row], column)
        before = [_valid(run.rows.get(row, {}), column) for run in self._earlier]
        known = [value for value in before if value is not None]
        if now is None or not known:
            return Movement(row, column, None, None)
        best = max(known) if column.more_is_better else min(known)
        last = None if before[-1] is None else _change(before[-1], now)
        return Movement(row, column, last, _change(best, now))


def _valid(figures: Mapping[str, float | None], column: Column) -> float | None:
    """None of a row with other tokens than it should have: its speed is worth nothing."""
    return figures.get(column.field) if figures.get("quality") == 1 else None


def _change(before: float, now: float) -> float | None:
    if before == now:
        return 0.0
    return now / before - 1 if before else None


def _shown(share: float | None) -> str:
    return "-" if share is None else f"{share:+.1%}"


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 4)
