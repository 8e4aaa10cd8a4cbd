"""The places of a device: which request has which, from when to when."""

from collections.abc import Iterable
from dataclasses import dataclass

from services.simulator.batching.request import Request


@dataclass(frozen=True)
class Stay:
    """One request in one place, in seconds of the timeline."""

    request: Request
    slot: int
    begin_s: float
    end_s: float


class Slots:
    """`num_slots` places; whoever comes takes the lowest that is free."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.stays: list[Stay] = []
        """of those that left"""
        self._held: dict[Request, tuple[int, float]] = {}

    def hold(self, requests: Iterable[Request], now_s: float) -> None:
        """From now on these have a place each, and no others."""
        staying = dict.fromkeys(requests)
        assert len(staying) <= self.num_slots, f"{len(staying)} requests in {self.num_slots} places"
        for request in [one for one in self._held if one not in staying]:
            slot, begin_s = self._held.pop(request)
            self.stays.append(Stay(request, slot, begin_s, now_s))
        taken = {slot for slot, _ in self._held.values()}
        free = (slot for slot in range(self.num_slots) if slot not in taken)
        for request in staying:
            if request not in self._held:
                self._held[request] = next(free), now_s
