"""Kernels and their alternatives, one row for each shape."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from services.cli.bench.kernels.known_rates import prefill_rival
from services.cli.bench.kernels.runs import Line

RATE, TIMES, FLOOR = "rested", ("us", "ours_us"), "floor_us"
OWN = ("us_", "ours_")
NO_SHAPE = frozenset(
    {"kernel", "gpu", "versions", "ratio", "torch", "rested", "sustained", "us", "bench"}
)
MEASURED = ("per_s", "share", "tflops", "speedup", "floor")
"""parts of the names of figures that follow from the times"""


@dataclass(frozen=True)
class Comparison:
    """One kernel at one shape."""

    kernel: str
    shape: str
    value: float | None
    """None: it steps aside for an alternative"""
    unit: str
    others: dict[str, float] = field(default_factory=dict)
    """by alternative, in the same unit"""
    floor: float | None = None

    @property
    def ahead(self) -> float | None:
        """How many times as fast as the best alternative."""
        if not self.others or not self.value:
            return None
        if self.unit == "us":
            return min(self.others.values()) / self.value
        return self.value / max(self.others.values())


def comparisons(name: str, lines: Sequence[Line]) -> Iterator[Comparison]:
    """Of the lines of one benchmark; lines that only describe the run are left out."""
    rivals = {str(line.get("shape")): line for line in lines if "torch" in line and RATE in line}
    for line in lines:
        if RATE in line and "torch" not in line:
            yield _rate(name, line, rivals.get(str(line.get("shape"))))
        elif any(key in line for key in TIMES):
            yield _time(name, line)


def render(rows: Sequence[Comparison]) -> str:
    """A table; an alternative's column is there when any row has it."""
    names = sorted({other for row in rows for other in row.others})
    table = [("kernel", "shape", "ours", "", "floor", *names, "ahead")]
    for row in rows:
        others = (_number(row.others.get(name)) for name in names)
        ahead = "" if row.ahead is None else f"{row.ahead:.2f}x"
        ours = _number(row.value) or "aside"
        table.append((row.kernel, row.shape, ours, row.unit, _number(row.floor), *others, ahead))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    left = (0, 1, 3)
    return "".join(
        "  ".join(
            cell.ljust(width) if at in left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        + "\n"
        for line in table
    )


def _time(name: str, line: Line) -> Comparison:
    others = {
        key.removesuffix("_us").replace("_", " "): float(value)
        for key, value in line.items()
        if _is_rival(key) and isinstance(value, int | float)
    }
    ours = next((line[key] for key in TIMES if key in line), None)
    kernel = str(line.get("kernel", name))
    return Comparison(kernel, _shape(line), ours, "us", others, line.get(FLOOR))


def _rate(name: str, line: Line, rival: Line | None) -> Comparison:
    others = {} if rival is None else {str(rival["torch"]): float(rival[RATE])}
    known = prefill_rival(str(line.get("shape")), int(line.get("block_size", 0)))
    if known is not None:
        others["flash attention 3"] = known
    kernel = str(line.get("kernel", name))
    return Comparison(kernel, _shape(line), line[RATE], "TFLOP/s", others)


def _shape(line: Line) -> str:
    parts = [
        f"{key.replace('_', ' ')} {_text(value)}" if key != "shape" else _text(value)
        for key, value in line.items()
        if value is not None and _says_shape(key)
    ]
    return ", ".join(parts)


def _is_rival(key: str) -> bool:
    return key.endswith("_us") and key != FLOOR and not key.startswith(OWN)


def _says_shape(key: str) -> bool:
    derived = any(part in key for part in MEASURED) or key.endswith("_us") or key.startswith(OWN)
    return key not in NO_SHAPE and not derived


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _text(value: Any) -> str:
    return " and ".join(map(str, value)) if isinstance(value, list) else str(value)
