"""How long a device works on a step: from the later of its launch and the end of the step before it
to its own end."""

import time
from itertools import cycle
from typing import Protocol

import torch

NUM_PAIRS = 4
"""of events that take turns: two steps are in flight, two more are to spare"""


class StepDuration(Protocol):
    """Of one step that was launched."""

    def seconds(self) -> float | None:
        """None while the device still works on it. Valid until three more steps are timed."""


class StepTimer(Protocol):
    """Called around the launch of a step; nothing here waits for the device."""

    def begin(self) -> None:
        """What is launched from now on belongs to the step."""

    def end(self) -> StepDuration:
        """The step is launched."""


def timer_for(device: torch.device) -> StepTimer:
    """The timer of steps that run on this device."""
    return EventTimer() if device.type == "cuda" else WallTimer()


class WallTimer:
    """On a CPU, where a step is over once it is launched."""

    def __init__(self) -> None:
        self._begun_s = 0.0

    def begin(self) -> None:
        self._begun_s = time.perf_counter()

    def end(self) -> "WallDuration":
        return WallDuration(time.perf_counter() - self._begun_s)


class WallDuration:
    """Known at once."""

    def __init__(self, seconds_s: float) -> None:
        self._seconds_s = seconds_s

    def seconds(self) -> float:
        return self._seconds_s


class EventTimer:
    """On a GPU, by events of the current stream. The first of a step is reached when the steps
    before it are done."""

    def __init__(self) -> None:
        self._pairs = cycle([EventPair() for _ in range(NUM_PAIRS)])
        self._pair = next(self._pairs)

    def begin(self) -> None:
        self._pair = next(self._pairs)
        self._pair.begun.record()

    def end(self) -> "EventPair":
        self._pair.ended.record()
        return self._pair


class EventPair:
    """Around what was launched between them."""

    def __init__(self) -> None:
        self.begun = torch.cuda.Event(enable_timing=True)
        self.ended = torch.cuda.Event(enable_timing=True)

    def seconds(self) -> float | None:
        return self.begun.elapsed_time(self.ended) / 1e3 if self.ended.query() else None
