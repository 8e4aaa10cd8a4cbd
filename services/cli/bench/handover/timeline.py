"""One hand-over moment by moment, out of its receipt: as text and as a picture. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from services.cli.bench.serve.report.svg import COLOURS, Panel, picture
from services.cli.trace.stages import Stage, number, read_stages
from shared.plot.axis import Axis

MISSING = "not in the receipt"
SHOWN_STAGES = ("queue", "prefill", "kv_transfer", "kv_held", "decode")
BAR_THICKNESS = 12.0
LEGEND_SPACE = 1.5
"""the time axis is this much longer than the request, so that the legend hides nothing"""


@dataclass(frozen=True)
class Moment:
    """Something that happened once."""

    name: str
    at_ms: float | None
    """since the gateway had the request; None: the receipt does not tell"""


@dataclass(frozen=True)
class Timeline:
    """The way of one request whose KV was handed over; what is not known comes last."""

    num_tokens: int
    moments: tuple[Moment, ...]
    stages: tuple[Stage, ...]

    def record(self) -> dict[str, Any]:
        """Its JSON line; a missing moment is null."""
        moments = {
            one.name: None if one.at_ms is None else round(one.at_ms, 3) for one in self.moments
        }
        return {"kind": "timeline", "prompt_tokens": self.num_tokens, "moments_ms": moments}


def read_timeline(receipt: Mapping[str, Any], token_2_ns: int) -> Timeline:
    """`token_2_ns`: wall-clock time at which the client had token 2, which no receipt has."""
    stages = tuple(stage for stage in read_stages(receipt) if stage.span in SHOWN_STAGES)
    begin_ns = number(receipt.get("received_ns")) or 0.0
    spans = {span.get("name"): span for span in receipt.get("stages") or ()}

    def moment(name: str, at_ns: object) -> Moment:
        known_ns = number(at_ns)
        return Moment(name, (known_ns - begin_ns) / 1e6 if known_ns else None)

    def edge(span: str, side: str) -> object:
        return spans.get(span, {}).get(side)

    chunks_ns = list(_events(spans.get("prefill", {}), "chunk"))
    moments = (
        moment("prefill begins", edge("prefill", "start_ns")),
        moment("first chunk computed and published", min(chunks_ns, default=None)),
        moment("last chunk computed and published", max(chunks_ns, default=None)),
        moment("token 1 at the gateway", receipt.get("first_token_ns")),
        moment("published, as decode read it", _event(spans, "published")),
        moment("sealed, as decode read it", _event(spans, "sealed")),
        moment("copied", _event(spans, "copied")),
        moment("verified", edge("kv_transfer", "end_ns")),
        moment("adopted", _event(spans, "adopted")),
        moment("first decode step begins", edge("decode", "start_ns")),
        moment("prefill's copy released", _event(spans, "released")),
        moment("token 2 at the client", token_2_ns),
    )
    in_order = sorted(moments, key=lambda one: inf if one.at_ms is None else one.at_ms)
    return Timeline(int(number(receipt.get("prompt_tokens")) or 0), tuple(in_order), stages)


def render_text(timeline: Timeline) -> str:
    """A line for each moment; a missing one is named as missing."""
    lines = [f"one hand-over of {timeline.num_tokens} tokens, ms since the gateway had the request"]
    for one in timeline.moments:
        at = "-" if one.at_ms is None else f"{one.at_ms:.2f}"
        lines.append(f"{at:>10}  {one.name}{f': {MISSING}' if one.at_ms is None else ''}")
    return "\n".join(lines) + "\n"


def render_svg(timeline: Timeline) -> str:
    """A bar for each stage, a line down for each moment."""
    known = [(one.name, one.at_ms) for one in timeline.moments if one.at_ms is not None]
    end_ms = max([at_ms for _, at_ms in known], default=1.0) * LEGEND_SPACE
    num_rows = len(timeline.stages)
    panel = Panel(
        "Stages as bars, moments as lines",
        Axis("ms since the gateway had the request", 0.0, max(end_ms, 1e-3)),
        Axis("stage", 0.0, float(max(num_rows, 1))),
        left=70,
        top=80,
        width=860,
        height=380,
    )
    colours = [COLOURS[at % len(COLOURS)] for at in range(max(num_rows, len(known)))]
    for row, (stage, colour) in enumerate(zip(timeline.stages, colours, strict=False)):
        place = num_rows - row - 0.5
        panel.bar((stage.start_ms, place), (stage.end_ms, place), colour, BAR_THICKNESS)
        panel.note(stage.name, colour)
    for (name, at_ms), colour in zip(known, colours, strict=False):
        panel.line([(at_ms, 0.0), (at_ms, float(max(num_rows, 1)))], colour, name, dashed=True)
    return picture(f"A hand-over of {timeline.num_tokens} tokens", [panel], 1000, 530)


def _event(spans: Mapping[Any, Mapping[str, Any]], name: str) -> object:
    """The last event of that name in any stage; None without one."""
    times_ns = [at_ns for span in spans.values() for at_ns in _events(span, name)]
    return times_ns[-1] if times_ns else None


def _events(span: Mapping[str, Any], name: str) -> Iterator[float]:
    for event in span.get("events") or ():
        if len(event) == 2 and event[0] == name and (at_ns := number(event[1])):
            yield at_ns
