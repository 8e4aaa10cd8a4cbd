"""Gauges of steps: by the arithmetic of what a step must read and multiply, over the latest."""

import time

import pytest
import torch

from shared.engine.running.ceilings import Ceilings
from shared.engine.running.empty_steps import decode_step, prompt_step
from shared.engine.running.step_clock import StepClock
from shared.engine.running.step_figures import StepFigures, Yardstick, flops, read_bytes
from shared.engine.running.step_size import StepSize
from shared.engine.scheduling.batch import HostBatch
from shared.model.config import parse_config
from shared.model.model_size import ModelSize
from shared.model.shapes import SHAPES
from tests.support.fakes.manual_clock import ManualClock

SIZE = ModelSize.of(parse_config(SHAPES["llama-3.1-8b"]), "bfloat16")
CEILINGS = Ceilings(copy_bytes_per_s=4e12, matmul_flops_per_s=7e14)
DECODE = StepSize(num_rows=5, num_context_tokens=5 * 1000, num_chunk_tokens=0, num_chunk_pairs=0)


def figures_of(steps: list[tuple[StepSize, float, float | None]]) -> dict[str, float]:
    figures = StepFigures()
    figures.yardstick = Yardstick(SIZE, CEILINGS, lambda tokens: max(8, tokens))
    for step in steps:
        figures.note(*step)
    return figures.values()


def test_decode_reads_the_weights_once_and_the_kv_of_each_row() -> None:
    kv_token_bytes = 2 * 32 * 8 * 128 * 2
    assert read_bytes(SIZE, DECODE) == SIZE.weight_bytes + 5 * 1000 * kv_token_bytes
    floor_s = read_bytes(SIZE, DECODE) / CEILINGS.copy_bytes_per_s
    values = figures_of([(DECODE, 2 * floor_s, None)] * 3)
    assert values["bandwidth_share"] == pytest.approx(0.5)
    assert "flops_share" not in values and "host_gap_ratio" not in values


def test_a_chunk_multiplies_as_often_as_the_prompt_says() -> None:
    """In chunks as whole: but for the vocabulary's product, which each step does once."""
    whole = flops(SIZE, StepSize.of_chunk(0, 4096))
    head = 2.0 * SIZE.head_params
    expected = 2.0 * SIZE.layer_params * 4096 + head + SIZE.attention_flops(4096)
    assert whole == pytest.approx(expected)
    halves = [flops(SIZE, StepSize.of_chunk(start, 2048)) for start in (0, 2048)]
    assert sum(halves) == pytest.approx(expected + head)
    step_s = whole / CEILINGS.matmul_flops_per_s / 0.8
    assert figures_of([(StepSize.of_chunk(0, 4096), step_s, None)]) == {
        "padding_ratio": 0.0,
        "flops_share": pytest.approx(0.8),
    }


def test_rows_beyond_a_window_read_no_more() -> None:
    windowed = ModelSize(10, 0, 0, (0, 100), 4, 8, 2)
    assert read_bytes(windowed, StepSize(2, 2 * 1000, 0, 0)) == 20 + 2 * 4 * (1000 + 100)
    assert windowed.flops_of_pairs(1000 * 10, 1000) == pytest.approx(4.0 * 8 * 10_000 * 1.1)


def test_padding_and_gaps_are_shares_of_all() -> None:
    values = figures_of([(DECODE, 0.009, 0.001)])
    assert values["padding_ratio"] == pytest.approx(3 / 8)
    assert values["host_gap_ratio"] == pytest.approx(0.1)


def test_the_latest_steps_count_most() -> None:
    slow = [(DECODE, 0.1, None)] * 1000
    fast = [(DECODE, read_bytes(SIZE, DECODE) / CEILINGS.copy_bytes_per_s, None)] * 1000
    assert figures_of([*slow, *fast])["bandwidth_share"] > 0.98


def test_without_a_yardstick_nothing_is_said() -> None:
    figures = StepFigures()
    figures.note(DECODE, 0.01, 0.0)
    assert figures.values() == {}


@pytest.mark.clock
def test_the_clock_tells_what_a_step_waited_for_the_host() -> None:
    """Whether the step before was timed or not, and never of a step after a rest."""
    clock = StepClock(torch.device("cpu"), ManualClock())
    clock.warm()

    def step(batch: HostBatch, *, follows: bool, gap_s: float = 0.0) -> float | None:
        time.sleep(gap_s)
        clock.begin(batch, follows=follows)
        timed = clock.end()
        return None if timed is None else timed.duration.gap_s()

    prompt = prompt_step(64, 1, 64, 16)
    assert step(prompt, follows=True) is None, "there was none before"
    assert step(prompt, follows=False, gap_s=0.05) is None
    assert step(prompt, follows=True, gap_s=0.05) == pytest.approx(0.05, abs=0.03)
    time.sleep(0.05)
    assert step(decode_step(1), follows=True) is None, "it is not timed"
    assert step(prompt, follows=True) == pytest.approx(0.0, abs=0.03)
