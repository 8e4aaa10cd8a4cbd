"""An engine predicts its own steps: those of the demo model on a CPU, in a mix of prompts that come
and go.

What else the machine does makes equal steps differ, and no model can know by how much. So a step
takes the CPU time of this process here, and how much equal steps differ is measured too. Others
that come or go meanwhile slow a core down for a part of the steps: that can only add to the error,
so one of a few tries has to be right.
"""

import random
import statistics
import time

import pytest

from shared.engine.engine import Engine
from shared.engine.running.held_out_error import NUM_RECENT, HeldOutError
from shared.engine.running.step_size import StepSize
from shared.engine.running.step_time import NUM_TRUSTED, StepTime
from shared.engine.running.step_timer import WallDuration
from shared.engine.scheduling.sequence import SequenceSpec
from shared.message_parts.step_costs import StepCosts
from shared.protocol import Attempt, Sampling, Work
from tests.support.measured import Measured
from tests.support.models.built_engine import built_engine
from tests.support.settings import settings_with

pytestmark = pytest.mark.alone

MAX_SEQUENCES = 16
LONGEST_PROMPT = 500
LONGEST_ANSWER = 30
NUM_EQUAL = 40
ERROR_LIMIT, ERROR_PER_NOISE = 0.10, 1.5
NUM_TRIES = 3


class CpuTimer:
    """Of all threads of this process."""

    def __init__(self) -> None:
        self._begun_s = 0.0

    def begin(self, *, follows: bool = False) -> None:
        self._begun_s = time.process_time()

    def end(self) -> WallDuration:
        return WallDuration(time.process_time() - self._begun_s)

    def pass_by(self) -> None:
        """Gaps are not looked at."""


class WatchedStepTime(StepTime):
    """Keeps what it was told."""

    def __init__(self, seed: StepCosts) -> None:
        super().__init__(seed)
        self.seconds: list[float] = []

    def note(self, size: StepSize, seconds_s: float) -> float:
        self.seconds.append(seconds_s)
        return super().note(size, seconds_s)


def arrive(engine: Engine, name: str, num_prompt: int, num_answer: int) -> None:
    prompt = tuple(range(num_prompt))
    sampling = Sampling(num_answer, temperature=0.0, ignore_eos=True)
    work = Work(Attempt(name, 0), prompt, num_prompt, bytes(32), sampling)
    engine.add(SequenceSpec.of(work, 16, "full", "agg"))


def clear(engine: Engine) -> None:
    for attempt in list(engine.sequences):
        engine.abort(attempt)
    while engine.has_work:
        engine.step()


def noise(engine: Engine, seed: StepCosts, name: str) -> float:
    """How far off their median nearly equal steps are, p90."""
    model = WatchedStepTime(seed)
    for number in range(MAX_SEQUENCES // 2):
        arrive(engine, f"{name}-{number}", 20, 1000)
    engine.step()
    engine.step_clock.model = model
    while len(model.seconds) < NUM_EQUAL:
        engine.step()
    clear(engine)
    deviation, median_s = HeldOutError(), statistics.median(model.seconds)
    for seconds_s in model.seconds:
        deviation.note(seconds_s, median_s)
    return deviation.p90


def run_mixed(engine: Engine, seed: StepCosts) -> float:
    """The error of a window of steps."""
    engine.step_clock.start_from(seed)
    error = engine.step_clock.model.error
    rng, number = random.Random(1), 0  # noqa: S311 (nothing secret)
    while error.count < NUM_TRUSTED + NUM_RECENT:
        while len(engine.sequences) < rng.randint(1, MAX_SEQUENCES):
            number += 1
            length, answer = rng.randint(20, LONGEST_PROMPT), rng.randint(5, LONGEST_ANSWER)
            arrive(engine, f"mixed-{number}", length, answer)
        engine.step()
    clear(engine)
    return error.p90


def test_steps_take_what_was_predicted(measured: Measured) -> None:
    settings = settings_with(model="demo", device="cpu", threads=1, prefix_cache=False)
    engine = built_engine(settings)
    engine.try_out()
    engine.step_clock.warm()
    engine.step_clock._timer = CpuTimer()
    seed = engine.step_clock.model.costs
    error, limit = 1.0, 0.0
    for _ in range(NUM_TRIES):
        before = noise(engine, seed, "before")
        error = run_mixed(engine, seed)
        after = noise(engine, seed, "after")
        limit = max(ERROR_LIMIT, ERROR_PER_NOISE * max(before, after))
        measured.note(f"equal steps differ by {before:.3f} before, {after:.3f} after, p90")
        if error <= limit:
            break
    measured.at_most("relative error of a step's time, p90", error, limit)
