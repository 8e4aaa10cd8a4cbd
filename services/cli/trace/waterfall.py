"""A finished request as a picture: one line per stage, bars on one time axis. Pure.

The input is the receipt of `/v1/baton/requests/{id}`. `ms` is how long a stage ran in its
process, `adds` what it added to the time the client waited: the two differ where stages overlap
or a message travels, and only `adds` sums up to the whole. A stage that was not measured is left
out. When decode is most of the request the axis ends early, so that the rest can be seen.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from services.cli.terminal import wrapped
from services.cli.trace.stages import Stage, number, numbers, read_stages

BAR_WIDTH = 40
MAX_DECODE_SHARE = 0.4
"""of the axis; a longer decode bar runs off its end"""
CRITICAL_PATH = {
    "earlier_attempts": "earlier attempts",
    "queue": "queue",
    "prefill": "prefill",
    "handover": "hand-over",
    "decode": "decode",
    "other": "other",
}
"""keys of the critical path in their order, and how they read"""
WAYS = {"mapped": " from mapped memory"}
"""of transports whose blocks go over no wire"""
CAPTION = "ms: how long it ran there; adds: its share of the time the client waited"
HEAD = ("stage", "pid", "process", "start", "ms", "adds")
NUMBERS = ("pid", "start", "ms", "adds")
LEFT_OUT_FIRST = ("process", "pid", "start", "adds", "ms")
"""where the terminal is too narrow for all columns"""
MIN_BAR_WIDTH = 14
"""what a bar needs to be worth a column"""
SHORTEST_MS = 0.05
"""a token; in less its stage has no end yet"""
GAP = "  "
LEGEND_INDENT = 11


@dataclass(frozen=True)
class Ink:
    """What bars are drawn with."""

    full: str = "█"
    overlapped: str = "░"
    goes_on: str = "▶"


ASCII = Ink("#", "-", ">")


@dataclass(frozen=True)
class TimeAxis:
    """The time axis of the bars, from 0 ms on."""

    end_ms: float
    num_cells: int

    @classmethod
    def of(cls, stages: Sequence[Stage], num_cells: int) -> "TimeAxis":
        """Ends with the last stage, or some way into a long decode."""
        end_ms = max(stage.end_ms for stage in stages)
        decode_ms = next((stage.start_ms for stage in stages if stage.span == "decode"), 0.0)
        if decode_ms:
            end_ms = min(end_ms, decode_ms / (1 - MAX_DECODE_SHARE))
        return cls(max(end_ms, 1e-6), num_cells)

    @property
    def scale(self) -> str:
        begin, end = "0 ms", f"{self.end_ms:.0f} ms"
        if len(begin) + len(end) < self.num_cells:
            return begin + end.rjust(self.num_cells - len(begin))
        return end.rjust(self.num_cells)

    def cell(self, time_ms: float) -> int:
        return int(time_ms / self.end_ms * self.num_cells)


def render_waterfall(receipt: Mapping[str, Any], ink: Ink = ASCII, width: int | None = None) -> str:
    """The picture as text, in lines of at most `width` characters; '' when the receipt has no
    measured stage."""
    stages = read_stages(receipt)
    if not stages:
        return ""
    overlapped_ms = number(receipt.get("handover_overlapped_ms")) or 0.0
    path = numbers(receipt.get("critical_path_ms"))
    rows = [HEAD, *((stage.name, stage.pid, stage.process, *_times(stage)) for stage in stages)]
    if "total" in path:
        rows.append(("total", "", "", "", "", f"{path['total']:.1f}"))
    left = _aligned(rows, width)
    num_cells = BAR_WIDTH if width is None else min(BAR_WIDTH, width - len(left[0]) - len(GAP))
    axis = TimeAxis.of(stages, num_cells)
    bars = [axis.scale, *(_bar(stage, axis, overlapped_ms, ink) for stage in stages)]
    table = [GAP.join(line).rstrip() for line in zip_longest(left, bars, fillvalue="")]
    legend = [wrapped(line, width, LEGEND_INDENT) for line in _legend(stages, receipt, ink)]
    rest = [wrapped(line, width) for line in _critical_path(path)]
    return "\n".join([*table, wrapped(CAPTION, width), "", *legend, *rest]) + "\n"


def _times(stage: Stage) -> tuple[str, str, str]:
    adds = "" if stage.adds_ms is None else f"{stage.adds_ms:.1f}"
    return f"{stage.start_ms:.1f}", f"{stage.end_ms - stage.start_ms:.1f}", adds


def _bar(stage: Stage, axis: TimeAxis, overlapped_ms: float, ink: Ink) -> str:
    """The bar at its place; never empty, never beyond the axis."""
    first = min(axis.cell(stage.start_ms), axis.num_cells - 1)
    last = round(stage.end_ms / axis.end_ms * axis.num_cells)
    last = min(max(last, first + 1), axis.num_cells)
    light = 0
    if stage.span == "kv_transfer":
        light = min(max(axis.cell(stage.start_ms + overlapped_ms) - first, 0), last - first)
    bar = " " * first + ink.overlapped * light + ink.full * (last - first - light)
    if stage.end_ms > axis.end_ms * (1 + 1 / axis.num_cells):
        bar = bar[:-1] + ink.goes_on
    return bar


def _legend(stages: Iterable[Stage], receipt: Mapping[str, Any], ink: Ink) -> Iterable[str]:
    """What each stage of the last attempt did, in a few words."""
    words = {
        "read": lambda stage: _read(receipt),
        "queue": lambda stage: "waited until a step had room for it",
        "prefill": _prefill,
        "kv_transfer": lambda stage: _transfer(stage, receipt, ink),
        "kv_held": lambda stage: "prefill kept its copy until decode had checked its own",
        "decode": _decode,
    }
    for stage in {stage.span: stage for stage in stages}.values():
        if stage.span in words:
            yield f"{stage.name:<10} {words[stage.span](stage)}"


def _read(receipt: Mapping[str, Any]) -> str:
    return f"the gateway made {_count(receipt.get('prompt_tokens'), 'token')} of the question"


def _prefill(stage: Stage) -> str:
    cached = stage.fact("cached_tokens")
    found = f", {cached} more found in the cache" if cached else ""
    chunks = _count(stage.fact("chunks"), "chunk")
    return f"computed {_count(stage.fact('tokens'), 'token')} in {chunks}{found}; gave token 1"


def _transfer(stage: Stage, receipt: Mapping[str, Any], ink: Ink) -> str:
    size_bytes, transport = number(stage.fact("bytes")), stage.fact("transport")
    size = f"{size_bytes / 1000:.0f} kB of KV cache" if size_bytes is not None else "KV cache"
    moved = f"decode pulled {size} in {_count(stage.fact('blocks'), 'block')}"
    way = WAYS.get(transport, f" over {transport}") if transport else ""
    way += _rate(size_bytes, number(stage.fact("busy_ms")))
    overlapped_ms = number(receipt.get("handover_overlapped_ms"))
    if not overlapped_ms:
        return f"{moved}{way}"
    return f"{moved}{way}; {overlapped_ms:.1f} ms of it ({ink.overlapped}) while prefill still ran"


def _rate(num_bytes: float | None, busy_ms: float | None) -> str:
    """While its bytes were awaited."""
    return f" at {num_bytes / busy_ms / 1e6:.3g} GB/s" if num_bytes and busy_ms else ""


def _decode(stage: Stage) -> str:
    num_tokens = number(stage.fact("tokens"))
    if not num_tokens:
        return "wrote the rest of the answer"
    each_ms = (stage.end_ms - stage.start_ms) / num_tokens
    if each_ms < SHORTEST_MS:
        return "is writing the rest of the answer"
    return f"{_count(stage.fact('tokens'), 'more token')}, one every {each_ms:.1f} ms"


def _count(number_of: object, noun: str) -> str:
    if number_of is None:
        return f"{noun}s"
    return f"{number_of} {noun}" + ("" if number_of == 1 else "s")


def _critical_path(path: Mapping[str, float]) -> list[str]:
    """`critical path: queue 1.2 + prefill 30.4 + ... ms`; nothing when it is not there."""
    known = [(text, path[key]) for key, text in CRITICAL_PATH.items() if key in path]
    if not known:
        return []
    terms = " + ".join(f"{text} {part_ms:.1f}" for text, part_ms in known)
    return ["", f"critical path: {terms} = {sum(part_ms for _, part_ms in known):.1f} ms"]


def _aligned(rows: Sequence[tuple[str, ...]], width: int | None) -> list[str]:
    """Numbers to the right, words to the left; columns are left out, the least telling first,
    until a bar has room next to them."""
    columns = {
        name: _column(cells, number=name in NUMBERS)
        for name, cells in zip(HEAD, zip(*rows, strict=True), strict=True)
    }
    for name in LEFT_OUT_FIRST:
        length = sum(len(cells[0]) + len(GAP) for cells in columns.values())
        if width is None or length + MIN_BAR_WIDTH <= width:
            break
        del columns[name]
    return [GAP.join(row) for row in zip(*columns.values(), strict=True)]


def _column(cells: Sequence[str], *, number: bool) -> list[str]:
    width = max(map(len, cells))
    return [cell.rjust(width) if number else cell.ljust(width) for cell in cells]
