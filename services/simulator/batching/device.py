"""A device, the policies by which it may batch, and one run of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Protocol

from services.simulator.batching.continuous_batching import ContinuousBatching, scheduler_of
from services.simulator.batching.group_batching import GroupBatching, Sending
from services.simulator.batching.request import Request
from services.simulator.batching.slots import Slots
from services.simulator.timeline import Timeline
from shared.message_parts.step_costs import StepCosts


@dataclass(frozen=True)
class Device:
    """What all policies have."""

    costs: StepCosts
    num_slots: int
    """sequences that it computes at once"""
    step_tokens: int
    """most tokens of one step of continuous batching"""
    longest: int
    """tokens of the longest sequence"""
    wait_s: float
    """that a group is waited for at most, where its policy has such a limit"""


class Batching(Protocol):
    """One policy at work."""

    slots: Slots
    num_rows: int

    def take(self, request: Request) -> None:
        """It arrives now."""

    def close(self) -> None:
        """Nothing more arrives."""


Maker = Callable[[Device, Timeline], Batching]


def _in_groups(device: Device, timeline: Timeline, *, when_full: bool, waits: bool) -> Batching:
    sending = Sending(when_full, device.wait_s if waits else None)
    return GroupBatching(sending, device.costs, device.num_slots, timeline)


def _continuous(device: Device, timeline: Timeline) -> Batching:
    scheduler = scheduler_of(device.num_slots, device.step_tokens, device.longest)
    return ContinuousBatching(scheduler, device.costs, timeline)


POLICIES: Mapping[str, Maker] = {
    "static": partial(_in_groups, when_full=True, waits=False),
    "dynamic": partial(_in_groups, when_full=True, waits=True),
    "timed": partial(_in_groups, when_full=False, waits=True),
    "continuous": _continuous,
}
"""static: a group is sent when there is a request for each place; timed: when its oldest has waited
`wait_s`; dynamic: whichever is first; continuous: the engine's scheduler, step by step"""


def serve(make: Maker, device: Device, requests: Sequence[Request]) -> Batching:
    """All of them, in order of arrival, until the last is answered."""
    timeline = Timeline()
    batching = make(device, timeline)
    for request in requests:
        timeline.at(request.at_s, partial(batching.take, request))
    timeline.at(requests[-1].at_s, batching.close)
    timeline.run(inf)
    return batching
