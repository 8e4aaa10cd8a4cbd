"""How long a device works on a step: from the later of its launch and the end of the step before it
to its own end. And how long it waited before, where it had work and the host was not ready.
"""

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

    def gap_s(self) -> float | None:
        """From the end of the step before to its begin, once it is over; None: it followed none."""


class StepTimer(Protocol):
    """Called around the launch of a step; nothing here waits for the device."""

    def begin(self, *, follows: bool = False) -> None:
        """What is launched from now on belongs to the step. `follows`: there was work to do since
        the step before it ended."""

    def end(self) -> StepDuration:
        """The step is launched."""

    def pass_by(self) -> None:
        """A step was launched that is not timed; the next one may follow it."""


def timer_for(device: torch.device) -> StepTimer:
    """The timer of steps that run on this device."""
    return EventTimer() if device.type == "cuda" else WallTimer()


class WallTimer:
    """On a CPU, where a step is over once it is launched."""

    def __init__(self) -> None:
        self._begun_s = 0.0
        self._ended_s = 0.0
        self._gap_s: float | None = None

    def begin(self, *, follows: bool = False) -> None:
        self._begun_s = time.perf_counter()
        self._gap_s = self._begun_s - self._ended_s if follows and self._ended_s else None

    def end(self) -> "WallDuration":
        self.pass_by()
        return WallDuration(self._ended_s - self._begun_s, self._gap_s)

    def pass_by(self) -> None:
        self._ended_s = time.perf_counter()


class WallDuration:
    """Known at once."""

    def __init__(self, seconds_s: float, gap_s: float | None = None) -> None:
        self._seconds_s = seconds_s
        self._gap_s = gap_s

    def seconds(self) -> float:
        return self._seconds_s

    def gap_s(self) -> float | None:
        return self._gap_s


class EventTimer:
    """On a GPU, by events of the current stream. The first of a step is reached when the steps
    before it are done."""

    def __init__(self) -> None:
        self._pairs = cycle([EventPair() for _ in range(NUM_PAIRS)])
        self._pair = next(self._pairs)
        self._ends = cycle([torch.cuda.Event(enable_timing=True) for _ in range(NUM_PAIRS)])
        self._last_end: torch.cuda.Event | None = None
        """of a step, reached when that is done"""

    def begin(self, *, follows: bool = False) -> None:
        self._pair = next(self._pairs)
        self._pair.before = self._last_end if follows else None
        self._pair.begun.record()

    def end(self) -> "EventPair":
        self._pair.ended.record()
        self._last_end = self._pair.ended
        return self._pair

    def pass_by(self) -> None:
        self._last_end = next(self._ends)
        self._last_end.record()


class EventPair:
    """Around what was launched between them."""

    def __init__(self) -> None:
        self.begun = torch.cuda.Event(enable_timing=True)
        self.ended = torch.cuda.Event(enable_timing=True)
        self.before: torch.cuda.Event | None = None
        """the end of the step before"""

    def seconds(self) -> float | None:
        return self.begun.elapsed_time(self.ended) / 1e3 if self.ended.query() else None

    def gap_s(self) -> float | None:
        if self.before is None or not self.ended.query():
            return None
        return float(self.before.elapsed_time(self.begun)) / 1e3
