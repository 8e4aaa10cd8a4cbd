"""Reads of another worker's pool that stand still, are damaged or lose their owner on purpose."""

import ctypes
from typing import Any

from shared.mover.agent import Agent, MakeAgent, NixlAgent
from shared.mover.copies import Regions
from shared.mover.reads import Reads, read_at
from tests.support.fakes.faulty_transport import Fault
from tests.support.fakes.strikes import Strikes

ENDED = object()
"""handle of a read that has ended already"""


class FaultyAgent:
    """Keeps the promise of `Agent` by another one. The first run of blocks of each read goes in two
    halves, with `half_read` between them."""

    def __init__(
        self,
        strikes: Strikes,
        made: "list[FaultyAgent]",
        name: str,
        regions: Regions,
        make: MakeAgent = NixlAgent,
    ) -> None:
        self._agent: Agent = make(name, regions)
        self._regions = regions
        self._strikes = strikes
        self._joined: set[str] = set()
        made.append(self)

    @property
    def num_joined(self) -> int:
        """Sources that it has not forgotten."""
        return len(self._joined)

    def card(self) -> bytes:
        return self._agent.card()

    def join(self, source: str, card: bytes, num_bytes: int) -> None:
        self._agent.join(source, card, num_bytes)
        self._joined.add(source)

    def leave(self, source: str) -> None:
        self._joined.discard(source)
        self._agent.leave(source)

    def begin(self, source: str, reads: Reads) -> Any:
        room = self._regions.probe_room
        first = int(reads.addresses[0])
        if room.address <= first < room.address + room.num_bytes:
            return self._agent.begin(source, reads)
        fault = self._strikes.read()
        num_bytes = int(reads.nums[0])
        half = num_bytes // 2
        self._finish(source, read_at(int(reads.offsets[0]), first, half))
        self._strikes.half_read()
        left = Reads(*(column.copy() for column in reads))
        left.offsets[0] += half
        left.addresses[0] += half
        left.nums[0] -= half
        if fault is not Fault.CORRUPT:
            return self._agent.begin(source, left)
        self._finish(source, left)
        ctypes.c_ubyte.from_address(first + num_bytes - 1).value ^= 1
        return ENDED

    def is_done(self, handle: Any) -> bool:
        return handle is ENDED or self._agent.is_done(handle)

    def progress(self) -> None:
        self._agent.progress()

    def close(self) -> None:
        self._joined.clear()
        self._agent.close()

    def _finish(self, source: str, reads: Reads) -> None:
        handle = self._agent.begin(source, reads)
        while not self._agent.is_done(handle):
            pass
