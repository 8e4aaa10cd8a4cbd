"""Idle time between steps, from kernels as intervals."""

import gzip
import json
from pathlib import Path

import pytest

from services.cli.bench.engine.steps.decode_profile import Profiled, gap_figures
from services.cli.bench.engine.steps.gap import Kernel, kernels_of, step_gaps
from shared.errors import BatonError


def step(start_us: float, gap_inside_us: float = 0.0) -> list[Kernel]:
    """prepare_step of 3 us, then two kernels that overlap, 100 us in all."""
    middle = start_us + 3 + gap_inside_us
    return [
        Kernel(start_us, start_us + 3, "prepare_step_kernel"),
        Kernel(middle, start_us + 60, "linear"),
        Kernel(start_us + 55, start_us + 100, "attention"),
    ]


def test_gaps_between_steps_only() -> None:
    gaps = step_gaps([*step(0), *step(110), *step(230), *step(335)])
    assert gaps.gaps_us == (10, 20, 5)
    assert gaps.steps_us == (110, 120, 105)
    assert gaps.median_us == 10
    assert gaps.p99_us == 20
    assert gaps.share == pytest.approx(10 / 110)
    assert gaps.num_steps == 3


def test_time_until_the_graph_starts_counts_too() -> None:
    """But not in the first step, which nobody saw the beginning of, nor between later kernels."""
    late = Kernel(225, 230, "sampling")
    gaps = step_gaps([*step(0, 50), *step(110, 4), late, *step(240, 1)])
    assert gaps.gaps_us == (14, 11)


def test_a_step_that_begins_before_the_last_ends_leaves_no_gap() -> None:
    """Programmatic dependent launch: prepare_step starts at 98, attention ends at 100."""
    assert step_gaps([*step(0), *step(98)]).gaps_us == (0,)


def test_the_end_is_that_of_the_longest_kernel() -> None:
    """A kernel on another stream runs on while later ones begin and end."""
    kernels = [*step(0), Kernel(10, 118, "gather on a side stream"), *step(120)]
    assert step_gaps(kernels).gaps_us == (2,)


def test_a_kernel_of_the_old_step_that_ends_in_the_new_one() -> None:
    kernels = [*step(0), Kernel(90, 130, "sampling"), *step(120), *step(230)]
    assert step_gaps(kernels).gaps_us == (0, 10)


def test_order_does_not_matter_and_the_last_steps_can_be_asked_for() -> None:
    kernels = [*step(0), *step(150), *step(260), *step(380)]
    assert step_gaps(reversed(kernels), num_steps=2).gaps_us == (10, 20)


def test_p99_of_many() -> None:
    starts = [0.0]
    for number in range(200):
        starts.append(starts[-1] + 100 + (50 if number in (7, 70, 150) else 1))
    gaps = step_gaps([kernel for start in starts for kernel in step(start)])
    assert (gaps.num_steps, gaps.median_us, gaps.p99_us) == (200, 1, 50)


def test_a_trace_without_steps() -> None:
    with pytest.raises(BatonError, match="0 kernels named prepare_step"):
        step_gaps([Kernel(0, 1, "linear")])


def test_kernels_of_a_trace(tmp_path: Path) -> None:
    events = [
        {"ph": "X", "cat": "kernel", "ts": 5.0, "dur": 2.5, "name": "prepare_step_kernel"},
        {"ph": "X", "cat": "gpu_memcpy", "ts": 1.0, "dur": 2.0, "name": "Memcpy HtoD"},
        {"ph": "X", "cat": "cpu_op", "ts": 0.0, "dur": 9.0, "name": "aten::mm"},
        {"ph": "M", "name": "process_name"},
    ]
    path = tmp_path / "trace.json.gz"
    with gzip.open(path, "wt") as file:
        json.dump({"traceEvents": events}, file)
    assert kernels_of(path) == [Kernel(5.0, 7.5, "prepare_step_kernel")]
    path = tmp_path / "no_trace.json"
    path.write_text("[]")
    with pytest.raises(BatonError, match="not a readable trace"):
        kernels_of(path)


def test_gaps_as_figures(tmp_path: Path) -> None:
    """Gaps of 4 us in steps of 104, and every 50th of 300 us: two in a hundred."""
    starts = [0.0]
    for number in range(200):
        starts.append(starts[-1] + 100 + (300 if number % 50 == 7 else 4))
    events = [
        {"ph": "X", "cat": "kernel", "ts": one.start_us, "dur": one.end_us - one.start_us}
        | {"name": one.name}
        for start in starts
        for one in step(start)
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    wanted = Profiled("host-gap-64", 64, 16, 200, scrape_hz=3.0)
    p99, share = gap_figures("m", wanted, kernels_of(path), path)
    assert (p99.cell, p99.value, p99.unit, p99.verdict) == ("host-gap-64-p99", 0.3, "ms", "missed")
    assert "64 sequences, metrics rendered at 3 Hz" in p99.text
    assert share.value == pytest.approx(400 / 104)
    assert share.verdict == "missed"
    assert share.more["gap_p50_ms"] == pytest.approx(0.004)
