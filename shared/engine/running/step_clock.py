"""Times the steps of one engine, and learns from those of a warm device.

Steps without a chunk come by the hundred a second, and one is much like the next: some of them are
timed, so that the host has time for the rest.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch

from shared.clock import Clock, SystemClock
from shared.engine.running.step_figures import StepFigures
from shared.engine.running.step_size import StepSize
from shared.engine.running.step_time import StepTime
from shared.engine.running.step_timer import StepDuration, timer_for
from shared.engine.scheduling.batch import HostBatch
from shared.message_parts.step_costs import StepCosts

COLD_S = 20.0
"""from the first step on: kernels are loaded, graphs captured and clocks raised meanwhile"""
DECODE_STRIDE = 4
"""steps without a chunk from one that is timed to the next"""
UNTRIED = StepCosts(1e-2, 1e-4, 1e-7, 1e-4, 1e-8)
"""of an engine without a trial"""


class TimedStep(NamedTuple):
    """A step that was launched and timed."""

    size: StepSize
    duration: StepDuration


class StepClock:
    """Called by the step loop only: `begin` and `end` around a launch, `note` once the step's
    tokens are on the host."""

    def __init__(
        self,
        device: torch.device,
        clock: Clock | None = None,
        on_decode_step: Callable[[float], None] = lambda _: None,
    ) -> None:
        """`clock`: by which a device is cold; the machine's. `on_decode_step`: hears of each timed
        step without a chunk how many times its prediction it took."""
        self._on_decode_step = on_decode_step
        self._timer = timer_for(device)
        self._clock = clock or SystemClock()
        self._warm_at_s: float | None = None
        self._num_decode_steps = 0
        self._timed: HostBatch | None = None
        """the step that is being launched, if it is timed"""
        self.model = StepTime(UNTRIED)
        self.figures = StepFigures()

    def start_from(self, seed: StepCosts) -> None:
        """What a trial says; what was learned is forgotten."""
        self.model = StepTime(seed)

    def warm(self) -> None:
        """Learn from now on: the device is not cold."""
        self._warm_at_s = self._clock.monotonic_s()

    def predict(self, batch: HostBatch) -> float:
        """Seconds that the device takes for this step at least: one in ten or so takes less."""
        return self.model.predict(StepSize.of(batch)) * max(0.0, 1 - self.model.error.p90)

    def begin(self, batch: HostBatch, *, follows: bool = False) -> None:
        """This step is about to be launched. `follows`: there was work to do since the one before
        it ended."""
        if self._warm_at_s is None:
            self._warm_at_s = self._clock.monotonic_s() + COLD_S
        self._timed = batch if self._is_timed(batch) else None
        if self._timed is not None:
            self._timer.begin(follows=follows)

    def end(self) -> TimedStep | None:
        """It is launched; None: it is not timed."""
        if self._timed is None:
            self._timer.pass_by()
            return None
        return TimedStep(StepSize.of(self._timed), self._timer.end())

    def note(self, step: TimedStep | None) -> None:
        """Learn from the step, if it was timed, is over, and the device was warm."""
        if step is None:
            return
        assert self._warm_at_s is not None, "it was launched"
        size, seconds_s = step.size, step.duration.seconds()
        if seconds_s is None or self._clock.monotonic_s() < self._warm_at_s:
            return
        self.figures.note(size, seconds_s, step.duration.gap_s())
        predicted_s = self.model.note(size, seconds_s)
        if not size.num_chunk_tokens:
            self._on_decode_step(seconds_s / predicted_s)

    def _is_timed(self, batch: HostBatch) -> bool:
        if batch.shape.has_chunks:
            return True
        self._num_decode_steps += 1
        return self._num_decode_steps % DECODE_STRIDE == 0
