"""A trace is of as many steps as it says, can be asked for again, and costs no step if it cannot be
written."""

import gzip
import json
import logging
from pathlib import Path

import pytest
import torch
from torch.profiler import profile

from shared.engine.running.step_trace import NUM_STEPS, StepTrace


def step(trace: StepTrace) -> None:
    trace.begin_step()
    torch.ones(8).cumsum(0)
    trace.end_step()


def num_sums(path: Path) -> int:
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    return sum(event["name"] == "aten::cumsum" for event in events)


def test_nothing_is_traced_before_somebody_asks(tmp_path: Path) -> None:
    step(StepTrace(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_each_trace_has_the_steps_after_it_was_asked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    trace = StepTrace(tmp_path)
    for number in (1, 2):
        step(trace)
        trace.ask()
        for at in range(NUM_STEPS):
            assert len(list(tmp_path.iterdir())) == number - 1
            if at == NUM_STEPS // 2:
                trace.ask()  # it is on its way
            step(trace)
        assert len(files := sorted(tmp_path.iterdir())) == number
        assert num_sums(files[-1]) == NUM_STEPS
        assert str(files[-1]) in caplog.text
    step(trace)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_trace_that_cannot_begin_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: profile) -> None:
        raise RuntimeError("another profiler runs")

    monkeypatch.setattr(profile, "start", refuse)
    trace = StepTrace(tmp_path)
    trace.ask()
    for _ in range(2):
        step(trace)
    assert caplog.text.count("no trace of steps: another profiler runs") == 1


def test_a_trace_that_cannot_be_written_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trace = StepTrace(tmp_path / "away")
    trace.ask()
    for _ in range(NUM_STEPS + 1):
        step(trace)
    assert "no trace of steps" in caplog.text
