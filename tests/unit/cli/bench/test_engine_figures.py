"""Figures, their checks, and which cells are measured: every check can fail."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from services.cli.bench.engine.cells import CPU, LARGE, SMALL, DecodeCell, cells_of, chosen
from services.cli.bench.engine.checks import (
    Reading,
    check_equal,
    check_phases,
    check_reading,
    check_runs,
)
from services.cli.bench.engine.figures.figure import Figure, render
from services.cli.bench.engine.figures.known import KNOWN, Known, known_figure
from services.cli.bench.engine.subject import Run
from services.cli.bench.engine.workload import Request, Workload
from shared.errors import SettingsError

DECODE = Figure("P1", "m", "tpot-1", 4.2, "ms", "text", floor=3.5, known=Known(5.0, 4.76, (4.0,)))
OFFLINE = Figure("P1", "m", "offline", 300.0, "tok/s", "text", floor=400.0, known=Known(250, 260))


def test_less_time_is_better() -> None:
    assert DECODE.ratio == pytest.approx(1.2)
    assert DECODE.ahead == pytest.approx(5.0 / 4.2)
    assert DECODE.verdict == "must"
    assert replace(DECODE, value=4.0).verdict == "reach 1 of 1"
    assert replace(DECODE, value=4.8).verdict == "missed"


def test_a_higher_rate_is_better() -> None:
    assert OFFLINE.ratio == pytest.approx(4 / 3)
    assert OFFLINE.ahead == pytest.approx(1.2)
    assert OFFLINE.verdict == "must"
    assert replace(OFFLINE, value=255.0).verdict == "missed"


def test_a_line_has_value_floor_ratio_and_rival() -> None:
    line = DECODE.record()
    assert (line["value"], line["floor"], line["ratio"]) == (4.2, 3.5, 1.2)
    assert (line["rival"], line["ahead"], line["must"], line["reach"]) == (5.0, 1.19, 4.76, [4.0])
    assert line["verdict"] == "must"


def test_the_table_names_a_failed_check() -> None:
    checks = (check_reading(Reading(1e6, 1000), 60_000_000),)
    table = render([replace(DECODE, checks=checks), OFFLINE], "vLLM")
    assert "FAILED" in table.splitlines()[1]
    assert "tpot-1: CHECK FAILED: KV read per step > 4 x L2" in table
    assert "FAILED" not in table.splitlines()[2]


def test_known_figures_are_of_one_device() -> None:
    assert known_figure("llama-3.1-8b", "tpot-1", "NVIDIA H200") is KNOWN["llama-3.1-8b", "tpot-1"]
    assert known_figure("llama-3.1-8b", "tpot-1", "NVIDIA H100 80GB HBM3") is None
    assert known_figure("llama-3.1-8b", "tpot-1", "NVIDIA H200", tp_size=2) is None
    assert known_figure("qwen3-8b", "tpot-1", "NVIDIA H200") is None


def test_every_known_figure_has_its_cell() -> None:
    names = {("llama-3.1-8b", cell.name) for cell in LARGE}
    names |= {("qwen3-0.6b", cell.name) for cell in SMALL}
    assert names == set(KNOWN)


def test_cells_by_model_device_and_pattern() -> None:
    assert cells_of("llama-3.1-8b", "cuda") == LARGE
    assert cells_of("qwen3-0.6b", "cuda") == SMALL
    assert cells_of("llama-3.1-8b", "cpu") == CPU
    assert chosen(LARGE, []) == list(LARGE)
    names = [cell.name for cell in chosen(LARGE, ["tpot-*", "offline"])]
    assert names == ["tpot-1", "tpot-32", "tpot-128", "tpot-256", "tpot-64-4k", "offline"]
    with pytest.raises(SettingsError, match="--cells tpot-3: no such cell; there are tpot-1"):
        chosen(LARGE, ["tpot-3"])


def test_a_cell_counts_its_context() -> None:
    cell = DecodeCell("tpot-1", 2, 1024)
    assert cell.mean_context == 1152.5  # 1025, 1026, ..., 1280
    assert cell.num_tokens == 2 * 1281


WORK = Workload(tuple(Request(tuple(range(start, start + 40)), 16) for start in (0, 100)))
GOOD = Run(
    elapsed_s=1.0,
    token_ids=(tuple(range(16)), tuple(range(20, 36))),
    num_prefix_hits=0,
    num_preemptions=0,
)


def test_a_good_run_passes() -> None:
    assert all(check.ok for check in check_runs([WORK], [GOOD], 1000, 16))


@pytest.mark.parametrize(
    ("name", "run"),
    [
        ("prefix hits 0", replace(GOOD, num_prefix_hits=32)),
        ("nothing computed twice", replace(GOOD, num_preemptions=1)),
        ("sampled ids returned", replace(GOOD, token_ids=((1, 2), GOOD.token_ids[1]))),
        ("sampled ids returned", replace(GOOD, token_ids=((1000, *range(15)),) * 2)),
        ("sampled ids returned", replace(GOOD, token_ids=((7,) * 16, (7,) * 16))),
    ],
)
def test_a_bad_run_is_found(name: str, run: Run) -> None:
    failed = [check.name for check in check_runs([WORK], [run], 1000, 16) if check.ok is False]
    assert len(failed) == 1
    assert failed[0].startswith(name)


def test_repeated_and_constant_prompts_are_found() -> None:
    same = Workload((WORK.requests[0],) * 2)
    zeros = Workload((Request((0,) * 40, 16),))
    for workloads, runs in (([same], [GOOD]), ([zeros], [replace(GOOD, token_ids=(range16(),))])):
        failed = [one.name for one in check_runs(workloads, runs, 1000, 16) if one.ok is False]
        assert failed == ["random prompts"]


def range16() -> tuple[int, ...]:
    return tuple(range(16))


def test_what_nobody_counts_is_not_judged() -> None:
    run = replace(GOOD, num_prefix_hits=None, num_preemptions=None)
    checks = {check.name: check.ok for check in check_runs([WORK], [run], 1000, 16)}
    assert checks["prefix hits 0"] is None
    assert checks["nothing computed twice"] is None


@pytest.mark.parametrize(
    ("kv_bytes", "weight_bytes", "cache_bytes", "ok"),
    [
        (5e9, 15_000_000_000, 60_000_000, True),
        (1.5e8, 15_000_000_000, 60_000_000, None),  # one sequence: weights are what is read
        (1.5e8, 100_000_000, 60_000_000, False),
        (1e3, 1000, None, None),
    ],
)
def test_keys_from_the_cache_are_found(
    kv_bytes: float, weight_bytes: int, cache_bytes: int | None, ok: bool | None
) -> None:
    assert check_reading(Reading(kv_bytes, weight_bytes), cache_bytes).ok is ok


def test_a_difference_that_the_steps_contradict_is_found() -> None:
    assert check_phases(0.0042, 0.0043).ok
    assert check_phases(0.0021, 0.0043).ok is False
    assert check_phases(0.0021, None).ok is None


@pytest.mark.parametrize(
    ("change", "ok"), [(lambda ids: ids, True), (lambda ids: (*ids[:3], 99, *ids[4:]), False)]
)
def test_other_tokens_than_the_eager_run_are_found(
    change: Callable[[tuple[int, ...]], tuple[int, ...]], ok: bool
) -> None:
    eager = replace(GOOD, token_ids=(GOOD.token_ids[0], change(GOOD.token_ids[1])))
    assert check_equal(GOOD, eager, 8, "how").ok is ok
    assert check_equal(GOOD, eager, 3, "how").ok
