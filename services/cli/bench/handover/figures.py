"""What was measured as figures with their goals. Pure."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from services.cli.bench.handover.measurement import Answer, Answers, CellRun, token_times_s
from services.cli.bench.measure.findings import Finding
from services.cli.bench.measure.quantiles import Distribution
from services.cli.bench.serve.sample import RequestSample
from services.cli.trace.stages import number
from shared.errors import BatonError

MAX_LATENESS_MS = 10.0
"""of the benchmark's own loop, p99: beyond it a time is the client's"""
GOAL_SHARE, GOAL_MS = 0.01, 1.0
"""time added to token 2: this share of the prefill time, and this long"""
GOAL_GAP_RATIO = 1.3
MIN_CACHED_SHARE = 0.9
MIN_TOKENS = 4
"""of an answer whose first gap is compared with the median of its later ones"""


def find_figures(pd: CellRun, agg: CellRun, *, on_gpus: bool = True) -> list[Finding]:
    """All figures, by prompt length; the goals are those of GPUs. BatonError when no request was
    handed over."""
    found = [*_added(pd, agg), *_gaps(pd, agg), *_rates(pd)]
    return found if on_gpus else [replace(one, goal=None) for one in found]


def handed_over(answers: Answers) -> list[Answer]:
    """Those whose KV moved; the others were computed where they were decoded. BatonError when
    there are none."""
    found = [one for one in answers.all if one.receipt.get("bytes")]
    if not found:
        raise BatonError("no request was handed over: the prefill worker was not used")
    return found


def _added(pd: CellRun, agg: CellRun) -> Iterator[Finding]:
    """Time to token 2 with a hand-over, less the time without."""
    for length, answers in pd.idle.items():
        moved, local = handed_over(answers), agg.idle[length].all
        with_it, without = _times(moved, _token_2_s), _times(local, _token_2_s)
        with_s, without_s = _median_of(with_it), _median_of(without)
        prefill_s = _median_of(_times(local, _token_1_s))
        note = (
            f"{length} tokens: token 2 after {with_s * 1e3:.2f} ms with pd and "
            f"{without_s * 1e3:.2f} ms with agg, token 1 after {prefill_s * 1e3:.2f} ms with agg "
            f"(all p50); goal on GPUs {GOAL_SHARE:.0%} of that and {GOAL_MS:g} ms"
        )
        yield Finding(
            "added",
            f"time added to token 2, {length} tokens, p50",
            (with_s - without_s) * 1e3,
            "ms",
            GOAL_SHARE * prefill_s * 1e3 + GOAL_MS,
            n=min(with_it.n, without.n),
            note=note,
            invalid=_lateness(answers) or _lateness(agg.idle[length]),
        )


def _gaps(pd: CellRun, agg: CellRun) -> Iterator[Finding]:
    """The gap from token 1 to token 2 over the median of the answer's later gaps."""
    for length, answers in pd.idle.items():
        name = f"gap 1-2 / median gap, idle, {length} tokens, p50"
        yield _gap(name, answers, handed_over(answers), GOAL_GAP_RATIO)
        local = agg.idle[length]
        yield _gap(f"  with agg, {length} tokens, p50", local, local.all)
        loaded = pd.loaded[length]
        name = f"gap 1-2 / median gap, loaded, {length} tokens, p50"
        yield _gap(name, loaded, handed_over(loaded))
        followed = pd.followed[length]
        name = f"gap 1-2 / median gap, prompt behind it, {length} tokens, p50"
        yield _gap(name, followed, handed_over(followed))


def _gap(
    name: str, answers: Answers, counted: Sequence[Answer], goal: float | None = None
) -> Finding:
    ratios = _times(counted, _gap_ratio)
    value, invalid = _median_of(ratios), _lateness(answers)
    return Finding("gap", name, value, "x", goal, n=ratios.n, invalid=invalid)


def _rates(pd: CellRun) -> Iterator[Finding]:
    """Bytes over the time of the whole transfer, as receipts tell them."""
    for answers in pd.moved.values():
        moved = handed_over(answers)
        rates = Distribution.of(rate for one in moved if (rate := _gb_per_s(one.receipt)))
        num_mb = max(number(one.receipt.get("bytes")) or 0.0 for one in moved) / 1e6
        transport = str(moved[0].receipt.get("transport") or "unknown")
        yield Finding(
            "rate",
            f"KV of {num_mb:.3g} MB, p50",
            _median_of(rates),
            "GB/s",
            n=rates.n,
            invalid="" if all(map(_was_cached, moved)) else "prompts were not in prefill's cache",
            note=(
                f"over {transport}, first read to verified; the prompt is in prefill's cache, and "
                "the step that computes its last token is within that time"
            ),
        )


def _was_cached(answer: Answer) -> bool:
    """Nearly all of the prompt, so that its KV moved at once."""
    cached = number(answer.receipt.get("cached_tokens")) or 0.0
    whole = number(answer.receipt.get("prompt_tokens")) or 0.0
    return cached >= MIN_CACHED_SHARE * whole


def _gb_per_s(receipt: Any) -> float | None:
    spans = [span for span in receipt.get("stages") or () if span.get("name") == "kv_transfer"]
    num_bytes = number(receipt.get("bytes"))
    if not spans or not num_bytes:
        return None
    duration_ns = spans[-1]["end_ns"] - spans[-1]["start_ns"]
    return num_bytes / duration_ns if duration_ns > 0 else None


def _token_1_s(sample: RequestSample) -> float | None:
    times_s = token_times_s(sample)
    return times_s[0] - sample.sent_s if times_s else None


def _token_2_s(sample: RequestSample) -> float | None:
    times_s = token_times_s(sample)
    return times_s[1] - sample.sent_s if times_s else None


def _gap_ratio(sample: RequestSample) -> float | None:
    if not token_times_s(sample) or sample.num_tokens < MIN_TOKENS:
        return None
    first = sample.gaps_s[0]
    later = sample.spread_gaps_s[sample.chunk_tokens[1] :]
    typical = median(later) if later else 0.0
    return first / typical if typical > 0 else None


def _times(
    answers: Sequence[Answer], read: Callable[[RequestSample], float | None]
) -> Distribution:
    """Of the answers that can be timed so."""
    return Distribution.of(v for one in answers if (v := read(one.sample)) is not None)


def _median_of(values: Distribution) -> float:
    value = values.at(0.5)
    if value is None:
        raise BatonError(
            f"only {values.n} of the answers can be timed token by token: more --requests, or a "
            "model whose tokens have text"
        )
    return value


def _lateness(answers: Answers) -> str:
    """Why the client may be what was measured; empty if it was not."""
    late_ms = Distribution.of(answers.lateness_s).tail * 1e3
    if late_ms <= MAX_LATENESS_MS:
        return ""
    return f"the client's loop was late: p99 {late_ms:.1f} ms, limit {MAX_LATENESS_MS:g} ms"
