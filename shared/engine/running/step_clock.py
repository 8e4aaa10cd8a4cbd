"""Times the steps of one engine, and learns from those of a warm device."""

from typing import NamedTuple

import torch

from shared.clock import Clock, SystemClock
from shared.engine.running.step_size import StepSize
from shared.engine.running.step_time import StepTime
from shared.engine.running.step_timer import StepDuration, timer_for
from shared.engine.scheduling.batch import HostBatch
from shared.protocol import StepCosts

COLD_S = 20.0
"""from the first step on: kernels are loaded, graphs captured and clocks raised meanwhile"""
UNTRIED = StepCosts(1e-2, 1e-4, 1e-7, 1e-4, 1e-8)
"""of an engine without a trial"""


class TimedStep(NamedTuple):
    """A step that was launched."""

    size: StepSize
    duration: StepDuration


class StepClock:
    """Called by the step loop only: `begin` and `end` around a launch, `note` once the step's
    tokens are on the host."""

    def __init__(self, device: torch.device, clock: Clock | None = None) -> None:
        """`clock`: by which a device is cold; the machine's."""
        self._timer = timer_for(device)
        self._clock = clock or SystemClock()
        self._warm_at_s: float | None = None
        self.model = StepTime(UNTRIED)

    def start_from(self, seed: StepCosts) -> None:
        """What a trial says; what was learned is forgotten."""
        self.model = StepTime(seed)

    def warm(self) -> None:
        """Learn from now on: the device is not cold."""
        self._warm_at_s = self._clock.monotonic_s()

    def begin(self) -> None:
        """A step is about to be launched."""
        if self._warm_at_s is None:
            self._warm_at_s = self._clock.monotonic_s() + COLD_S
        self._timer.begin()

    def end(self, batch: HostBatch) -> TimedStep:
        """It is launched."""
        return TimedStep(StepSize.of(batch), self._timer.end())

    def note(self, step: TimedStep) -> None:
        """Learn from the step, if it is over and the device was warm."""
        assert self._warm_at_s is not None, "it was launched"
        seconds_s = step.duration.seconds()
        if seconds_s is not None and self._clock.monotonic_s() >= self._warm_at_s:
            self.model.note(step.size, seconds_s)
