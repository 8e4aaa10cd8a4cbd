"""A finished request as a picture: one line per stage, bars on one time axis. Pure.

The input is the receipt of `/v1/baton/requests/{id}`: `stages` with `name`, `pid`, `start_ns`,
`end_ns` and `attributes`, and `critical_path_ms`. A stage that was not measured is left out.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

BAR_WIDTH = 40
NAMES = {"kv_transfer": "hand-over", "request": "whole request"}
"""what a reader is told instead of the span's name"""
SHOWN_ATTRIBUTES = (
    ("worker", "{}"),
    ("chunks", "{} chunk(s)"),
    ("cached_tokens", "{} tokens cached"),
    ("blocks", "{} blocks"),
    ("bytes", "{} bytes"),
    ("gb_per_s", "{} GB/s"),
    ("transport", "by {}"),
    ("tokens", "{} tokens"),
)
"""last part of an attribute's name, and how it reads"""
CRITICAL_PATH = {
    "queue": "queue",
    "prefill": "prefill",
    "handover": "hand-over",
    "decode": "decode",
    "other": "other",
}
"""keys of the critical path in their order, and how they read"""


@dataclass(frozen=True)
class Bar:
    """One measured stage; ms on one axis."""

    name: str
    pid: str
    start_ms: float
    end_ms: float
    remark: str


def render_waterfall(receipt: Mapping[str, Any], block: str = "█") -> str:
    """The picture as text; '' when the receipt has no measured stage."""
    bars = sorted(_bars(receipt.get("stages") or ()), key=lambda bar: (bar.start_ms, bar.end_ms))
    if not bars:
        return ""
    begin_ms = min(bar.start_ms for bar in bars)
    length_ms = max(max(bar.end_ms for bar in bars) - begin_ms, 1e-6)
    rows = [("stage", "pid", "start", "ms", "", "")]
    for bar in bars:
        rows.append(
            (
                bar.name,
                bar.pid,
                f"{bar.start_ms - begin_ms:.1f}",
                f"{bar.end_ms - bar.start_ms:.1f}",
                _drawn(bar, begin_ms, length_ms, block),
                bar.remark,
            )
        )
    path = _critical_path(receipt.get("critical_path_ms"))
    return "\n".join([*_aligned(rows), *([path] if path else [])]) + "\n"


def _bars(stages: Iterable[object]) -> Iterable[Bar]:
    for stage in stages:
        if not isinstance(stage, Mapping):
            continue
        start_ns, end_ns = _number(stage.get("start_ns")), _number(stage.get("end_ns"))
        if start_ns is None or end_ns is None or end_ns < start_ns:
            continue
        name = str(stage.get("name", "?"))
        pid = str(stage.get("pid") or "")
        remark = _remark(stage.get("attributes"))
        yield Bar(NAMES.get(name, name), pid, start_ns / 1e6, end_ns / 1e6, remark)


def _drawn(bar: Bar, begin_ms: float, length_ms: float, block: str) -> str:
    """The bar at its place; never empty, never beyond the axis."""
    first = min(int((bar.start_ms - begin_ms) / length_ms * BAR_WIDTH), BAR_WIDTH - 1)
    last = round((bar.end_ms - begin_ms) / length_ms * BAR_WIDTH)
    return (" " * first + block * max(last - first, 1)).ljust(BAR_WIDTH)


def _remark(attributes: object) -> str:
    if not isinstance(attributes, Mapping):
        return ""
    known = {str(key).rpartition(".")[2]: value for key, value in attributes.items()}
    return ", ".join(text.format(known[key]) for key, text in SHOWN_ATTRIBUTES if key in known)


def _critical_path(path: object) -> str:
    """`critical path: queue 1.2 + prefill 30.4 + ... ms`; '' when it is not there."""
    if not isinstance(path, Mapping):
        return ""
    parts = [(text, _number(path.get(key))) for key, text in CRITICAL_PATH.items()]
    known = [(text, part_ms) for text, part_ms in parts if part_ms is not None]
    if not known:
        return ""
    terms = " + ".join(f"{text} {part_ms:.1f}" for text, part_ms in known)
    return f"critical path: {terms} = {sum(part_ms for _, part_ms in known):.1f} ms"


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Numbers to the right, words to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if index in (1, 2, 3) else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines
