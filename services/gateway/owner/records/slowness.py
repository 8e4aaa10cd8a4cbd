"""Why an answer was slow, from what its gateway and its workers measured. Pure.

queue           it waited for a worker, or on one for its first step
retry           earlier attempts that brought no token; else from their last one to the next
handover        from token 1 until decode went on
place           of that, since its KV was there: the batch of its decode worker was full
pause           its worker computed other prompts meanwhile, took its KV blocks away, or stood still
long_neighbour  chunks of other prompts stretched the steps that computed it
batch           other sequences in these steps did

An answer is slow if one of these parts is a third of its time, but never less than SHORT_MS; of
those that hold an answer up at one place SLOW_MS are enough. The batch slows all of an answer
evenly, so that its part is not felt as a wait. The cause of a slow answer is the largest part of
all, even where a smaller one alone made it slow: it is what costs most beyond the answer's own
steps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from shared.message_parts.span import Span
from shared.telemetry import attributes as names

Cause = Literal["queue", "retry", "handover", "place", "pause", "long_neighbour", "batch"]

SHORT_MS = 50.0
SLOW_MS = 1000.0
SHARE = 1 / 3


@dataclass(frozen=True)
class Slowness:
    """That an answer was slow, and by what most."""

    cause: Cause
    ms: float
    """that the cause took"""
    share: float
    """of the whole answer's time"""


def slow_parts(
    path_ms: Mapping[str, float], spans: Sequence[Span], silent_ms: float | None = None
) -> dict[Cause, float]:
    """Milliseconds by cause. `spans`: the workers' of the attempt that ended the request.
    `silent_ms`: from the last token of earlier attempts to its first, where they brought any; that
    includes its queue and prefill."""
    retried = silent_ms is not None
    parts: dict[Cause, float] = {
        "queue": 0.0 if retried else path_ms["queue"],
        "retry": path_ms.get("earlier_attempts", 0.0) if silent_ms is None else silent_ms,
    }
    place_ms = min(path_ms["handover"], sum(map(_waited_for_place_ms, spans)))
    parts |= {"handover": path_ms["handover"] - place_ms, "place": place_ms}
    computed = [span for span in spans if span.name in (names.SPAN_PREFILL, names.SPAN_DECODE)]
    told = [span for span in computed if names.STEP_MS in span.attributes]
    parts["pause"] = sum(
        max(0.0, (span.end_ns - span.start_ns) / 1e6 - measured(span, names.STEP_MS))
        for span in told
    )
    parts["long_neighbour"] = sum(measured(span, names.STRETCHED_MS) for span in told)
    parts["batch"] = sum(measured(span, names.CROWDED_MS) for span in told)
    return parts


def slowness_of(parts_ms: Mapping[Cause, float], total_ms: float) -> Slowness | None:
    """None: nothing was slow. `total_ms`: of the whole answer."""
    if not any(_is_slow(cause, ms, total_ms) for cause, ms in parts_ms.items()):
        return None
    cause = max(parts_ms, key=lambda cause: parts_ms[cause])
    return Slowness(cause, parts_ms[cause], parts_ms[cause] / total_ms)


def measured(span: Span, name: str) -> float:
    """0 of a worker that does not tell."""
    return float(span.attributes.get(name, 0.0))


def _waited_for_place_ms(span: Span) -> float:
    """Between the verdict on its KV and its first step, where that came later."""
    if span.name != names.SPAN_DECODE:
        return 0.0
    adopted = [event.time_ns for event in span.events if event.name == names.EVENT_ADOPTED]
    return max(0.0, (span.start_ns - adopted[0]) / 1e6) if adopted else 0.0


def _is_slow(cause: Cause, ms: float, total_ms: float) -> bool:
    enough_ms = max(SHORT_MS, SHARE * total_ms)
    if cause != "batch":
        enough_ms = min(SLOW_MS, enough_ms)
    return ms >= enough_ms
