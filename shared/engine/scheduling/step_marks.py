"""When the layers of a step have written their KV, group by group."""

import threading
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

Mark = Any
"""when work that was started is done: a CUDA event; None on a CPU, where it is done at once"""


class StepMarks:
    """Of one step, a mark for each layer group."""

    def __init__(
        self,
        number: int,
        layer_ends: Sequence[int],
        record: Callable[[], Mark],
        num_later: int = 0,
    ) -> None:
        """`num_later`: layers after a group that are begun before its mark is made."""
        self.number = number
        """of the step"""
        self._num_later = num_later
        self._layer_ends = layer_ends
        self._record = record
        self._marks: list[Mark] = []
        self._changed = threading.Condition()

    def on_stored(self, layer: int) -> None:
        """The work that writes K and V of this layer has been started; called layer by layer."""
        if layer + 1 - self._num_later == self._layer_ends[len(self._marks)]:
            self._add()

    def finish(self) -> None:
        """All of the step's work has been started, whichever way."""
        while len(self._marks) < len(self._layer_ends):
            self._add()

    def of_group(self, group: int) -> Mark:
        """Waits until the group's work has been started."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._marks) > group)
            return self._marks[group]

    def num_done(self, first: int) -> int:
        """Groups from this one on whose work is known to be done; does not wait."""
        with self._changed:
            marks = self._marks[first:]
        done = takewhile(lambda mark: mark is None or mark.query(), marks)
        return sum(1 for _ in done)

    def _add(self) -> None:
        with self._changed:
            self._marks.append(self._record())
            self._changed.notify_all()
