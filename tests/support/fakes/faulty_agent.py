"""Reads of another worker's pool that stand still, are damaged or lose their owner on purpose."""

import ctypes
from collections.abc import Sequence
from typing import Any

from shared.mover.agent import NixlAgent, Read
from shared.mover.copies import Regions
from tests.support.fakes.faulty_transport import Fault
from tests.support.fakes.strikes import Strikes

ENDED = object()
"""handle of a read that has ended already"""


class FaultyAgent(NixlAgent):
    """The first run of blocks of each read goes in two halves, with `half_read` between them."""

    def __init__(
        self, strikes: Strikes, made: "list[FaultyAgent]", name: str, regions: Regions
    ) -> None:
        super().__init__(name, regions)
        self._strikes = strikes
        made.append(self)

    @property
    def num_joined(self) -> int:
        """Sources that it has not forgotten."""
        return len(self._joined)

    def begin(self, source: str, reads: Sequence[Read]) -> Any:
        first, *rest = reads
        if first.address == self._regions.probe_room.address:
            return super().begin(source, reads)
        fault = self._strikes.read()
        half = first.num_bytes // 2
        self._finish(source, [Read(first.offset, first.address, half)])
        self._strikes.half_read()
        left = Read(first.offset + half, first.address + half, first.num_bytes - half)
        if fault is not Fault.CORRUPT:
            return super().begin(source, [left, *rest])
        self._finish(source, [left, *rest])
        ctypes.c_ubyte.from_address(first.address + first.num_bytes - 1).value ^= 1
        return ENDED

    def is_done(self, handle: Any) -> bool:
        return handle is ENDED or super().is_done(handle)

    def _finish(self, source: str, reads: Sequence[Read]) -> None:
        handle = super().begin(source, reads)
        while not super().is_done(handle):
            pass
