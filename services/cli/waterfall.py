"""A finished request as a picture: one line per stage, bars on one time axis. Pure.

The input is the receipt of `/v1/baton/requests/{id}`. `ms` is how long a stage ran in its
process, `adds` what it added to the time the client waited: the two differ where stages overlap
or a message travels, and only `adds` sums up to the whole. A stage that was not measured is left
out. When decode is most of the request the axis ends early, so that the rest can be seen.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.cli.waterfall_stages import Stage, number, numbers, read_stages

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
CAPTION = "ms: how long it ran there; adds: its share of the time the client waited"
NUMBER_COLUMNS = (1, 3, 4, 5)


@dataclass(frozen=True)
class Ink:
    """What bars are drawn with."""

    full: str = "█"
    overlapped: str = "░"
    goes_on: str = "▶"


ASCII = Ink("#", "-", ">")


def render_waterfall(receipt: Mapping[str, Any], ink: Ink = ASCII) -> str:
    """The picture as text; '' when the receipt has no measured stage."""
    stages = read_stages(receipt)
    if not stages:
        return ""
    overlapped_ms = number(receipt.get("handover_overlapped_ms")) or 0.0
    axis_ms = _axis_ms(stages)
    rows = [("stage", "pid", "process", "start", "ms", "adds", _scale(axis_ms))]
    for stage in stages:
        bar = _bar(stage, axis_ms, overlapped_ms, ink)
        rows.append((stage.name, stage.pid, stage.process, *_times(stage), bar))
    path = numbers(receipt.get("critical_path_ms"))
    if "total" in path:
        rows.append(("total", "", "", "", "", f"{path['total']:.1f}", ""))
    legend = _legend(stages, receipt, ink)
    return "\n".join([*_aligned(rows), CAPTION, "", *legend, *_critical_path(path)]) + "\n"


def _axis_ms(stages: Sequence[Stage]) -> float:
    """Where the axis ends: with the last stage, or some way into a long decode."""
    end_ms = max(stage.end_ms for stage in stages)
    decode_ms = next((stage.start_ms for stage in stages if stage.span == "decode"), end_ms)
    return max(min(end_ms, decode_ms / (1 - MAX_DECODE_SHARE)) if decode_ms else end_ms, 1e-6)


def _scale(axis_ms: float) -> str:
    return "0 ms" + f"{axis_ms:.0f} ms".rjust(BAR_WIDTH - 4)


def _times(stage: Stage) -> tuple[str, str, str]:
    adds = "" if stage.adds_ms is None else f"{stage.adds_ms:.1f}"
    return f"{stage.start_ms:.1f}", f"{stage.end_ms - stage.start_ms:.1f}", adds


def _bar(stage: Stage, axis_ms: float, overlapped_ms: float, ink: Ink) -> str:
    """The bar at its place; never empty, never beyond the axis."""
    first = min(_cell(stage.start_ms, axis_ms), BAR_WIDTH - 1)
    last = min(max(round(stage.end_ms / axis_ms * BAR_WIDTH), first + 1), BAR_WIDTH)
    light = 0
    if stage.span == "kv_transfer":
        light = min(max(_cell(stage.start_ms + overlapped_ms, axis_ms) - first, 0), last - first)
    bar = " " * first + ink.overlapped * light + ink.full * (last - first - light)
    if stage.end_ms > axis_ms * (1 + 1 / BAR_WIDTH):
        bar = bar[:-1] + ink.goes_on
    return bar.ljust(BAR_WIDTH)


def _cell(time_ms: float, axis_ms: float) -> int:
    return int(time_ms / axis_ms * BAR_WIDTH)


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
    way = f" over {transport}" if transport else ""
    overlapped_ms = number(receipt.get("handover_overlapped_ms"))
    if not overlapped_ms:
        return f"{moved}{way}"
    return f"{moved}{way}; {overlapped_ms:.1f} ms of it ({ink.overlapped}) while prefill still ran"


def _decode(stage: Stage) -> str:
    num_tokens = number(stage.fact("tokens"))
    if not num_tokens:
        return "wrote the rest of the answer"
    each_ms = (stage.end_ms - stage.start_ms) / num_tokens
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


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Numbers to the right, words to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if index in NUMBER_COLUMNS else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines
