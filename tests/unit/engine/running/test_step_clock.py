"""The clock of steps: each launch gets the time it took, and only a warm device teaches."""

import time

import pytest
import torch

from shared.engine.running.empty_steps import decode_step, prompt_step
from shared.engine.running.step_clock import COLD_S, DECODE_STRIDE, StepClock, TimedStep
from shared.engine.running.step_size import StepSize
from shared.engine.running.step_timer import WallDuration
from shared.engine.scheduling.batch import HostBatch
from shared.message_parts.step_costs import StepCosts
from tests.support.fakes.manual_clock import ManualClock

pytestmark = pytest.mark.clock

CPU = torch.device("cpu")
STEP_S = 0.02
PROMPT = prompt_step(64, 1, 64, 16)


def timed_step(clock: StepClock, batch: HostBatch) -> TimedStep:
    clock.begin(batch)
    time.sleep(STEP_S)
    timed = clock.end()
    assert timed is not None, "a step with a chunk is timed"
    return timed


def run_step(clock: StepClock) -> None:
    clock.note(timed_step(clock, PROMPT))


def test_a_step_has_its_size_and_its_time() -> None:
    timed = timed_step(StepClock(CPU), PROMPT)
    assert timed.size == StepSize.of_chunk(0, 64)
    seconds_s = timed.duration.seconds()
    assert seconds_s is not None
    assert STEP_S <= seconds_s < 10 * STEP_S


def test_one_of_a_few_steps_without_a_chunk_is_timed() -> None:
    clock = StepClock(CPU)
    timed = []
    for batch in (decode_step(3), PROMPT) * (2 * DECODE_STRIDE):
        clock.begin(batch)
        timed.append(clock.end())
        clock.note(timed[-1])
    assert [step is not None for step in timed[::2]] == 2 * ([False] * (DECODE_STRIDE - 1) + [True])
    assert None not in timed[1::2]


def test_the_steps_of_a_cold_device_teach_nothing() -> None:
    time_source = ManualClock(7.0)
    clock = StepClock(CPU, time_source)
    cold = clock.model.costs
    run_step(clock)
    time_source.advance(COLD_S - 0.1)
    run_step(clock)
    assert (clock.model.costs, clock.model.error.count) == (cold, 0)
    time_source.advance(0.1)
    run_step(clock)
    assert clock.model.error.count == 1
    assert clock.model.costs != cold


def test_a_device_that_is_said_to_be_warm_teaches_at_once() -> None:
    clock = StepClock(CPU, ManualClock())
    clock.warm()
    run_step(clock)
    assert clock.model.predict(StepSize.of(PROMPT)) == pytest.approx(STEP_S, rel=0.5)


def test_a_step_that_is_not_over_is_left_out() -> None:
    class Unfinished:
        def seconds(self) -> None:
            return None

        def gap_s(self) -> None:
            return None

    clock = StepClock(CPU, ManualClock())
    clock.warm()
    clock.note(timed_step(clock, PROMPT)._replace(duration=Unfinished()))
    assert clock.model.error.count == 0


def test_warm_steps_without_a_chunk_are_told_by_their_prediction() -> None:
    """The prediction is the one from before the step."""
    time_source, told = ManualClock(7.0), list[float]()
    clock = StepClock(CPU, time_source, told.append)
    clock.start_from(StepCosts(0.010, 1e-12, 1e-12, 1e-12, 1e-12))
    size = StepSize.of(decode_step(3))
    steps = [TimedStep(size, WallDuration(seconds_s)) for seconds_s in (0.012, 0.015)]
    clock.begin(PROMPT)
    clock.note(steps[0])
    assert told == [], "the device is cold"
    time_source.advance(COLD_S)
    clock.note(steps[0])
    assert told == [pytest.approx(1.2)]
    expected = 0.015 / clock.model.predict(size)
    clock.note(TimedStep(StepSize.of(PROMPT), WallDuration(0.015)))
    clock.note(steps[1])
    assert len(told) == 2 and told[1] == pytest.approx(expected, rel=0.2)
