"""Batches as one tensor: a group begins together, and its places are free when its longest ends.

Prompts are padded to the longest of the group, and a sequence that has ended goes on as padding.
Its tokens are counted when they are computed, so what waits for the group's end is the place
alone; a server that answers when the group ends would make its clients wait longer.
"""

from dataclasses import dataclass
from itertools import repeat

from services.simulator.batching.request import Request
from services.simulator.batching.slots import Slots
from services.simulator.batching.step_cost import step_s
from services.simulator.timeline import Timeline
from shared.message_parts.step_costs import StepCosts


@dataclass(frozen=True)
class Sending:
    """When a group that waits for the device is sent to it."""

    when_full: bool
    """as soon as it has a request for each place"""
    after_s: float | None = None
    """when its oldest has waited so long, with whatever is there; None: not before it is full"""


class GroupBatching:
    """A device that computes one group after the other."""

    def __init__(
        self, sending: Sending, costs: StepCosts, num_slots: int, timeline: Timeline
    ) -> None:
        self.slots = Slots(num_slots)
        self.num_rows = 0
        """tokens computed so far, padding included"""
        self._sending = sending
        self._costs = costs
        self._timeline = timeline
        self._line: list[Request] = []
        self._group: list[Request] = []
        self._num_steps = 0
        """of the group that is computed, done so far"""
        self._closed = False

    def take(self, request: Request) -> None:
        """It arrives now."""
        self._line.append(request)
        if self._sending.after_s is not None:
            self._timeline.after(self._sending.after_s, self._look)
        self._look()

    def close(self) -> None:
        """Nothing more arrives, so a group that cannot become full waits no longer for that."""
        self._closed = True
        self._look()

    def _look(self) -> None:
        """Begin the next group if the device is free and the group is due."""
        if self._group or not self._line or not self._is_due():
            return
        num_slots = self.slots.num_slots
        self._group, self._line = self._line[:num_slots], self._line[num_slots:]
        self._num_steps = 0
        self.slots.hold(self._group, self._timeline.now_s)
        self._begin_step()

    def _is_due(self) -> bool:
        sending = self._sending
        if sending.when_full and len(self._line) >= self.slots.num_slots:
            return True
        if sending.after_s is None:
            return self._closed
        return self._timeline.now_s >= self._line[0].at_s + sending.after_s

    def _begin_step(self) -> None:
        num, longest = len(self._group), max(one.num_prompt for one in self._group)
        if not self._num_steps:
            self.num_rows += num * longest
            takes_s = step_s(self._costs, (), repeat((0, longest), num))
        else:
            self.num_rows += num
            takes_s = step_s(self._costs, repeat(longest + self._num_steps, num))
        self._timeline.after(takes_s, self._end_step)

    def _end_step(self) -> None:
        now_s = self._timeline.now_s
        self._num_steps += 1
        for request in self._group:
            if not request.is_answered:
                request.tokens_s.append(now_s)
        if all(request.is_answered for request in self._group):
            self._group = []
            self.slots.hold((), now_s)
            self._look()
        else:
            self._begin_step()
