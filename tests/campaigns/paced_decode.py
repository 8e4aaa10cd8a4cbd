"""`baton serve decode` whose copies out of mapped pools have a rate.

`python -m tests.campaigns.paced_decode PACE serve decode FLAGS`. The file PACE holds bytes a second
(0: no limit), which the campaign writes, and the bytes copied so far, which the worker writes.
"""

import mmap
import struct
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from services.cli.__main__ import main
from services.decode import main as decode
from services.decode.pulls import Pulls
from services.decode.service import DecodeService
from shared.kv.columns import Words
from shared.kv.layer_groups import GroupRange, LayerGroups, layer_groups
from shared.mover.client import MoverClient
from shared.mover.messages import LastFetch
from shared.protocol import Attempt
from shared.transfer.blocks.copied import ShownPool
from shared.transfer.blocks.mapping import BlockMover
from shared.transfer.limits import TransferLimits
from shared.transfer.terms import Terms
from shared.transfer.ways.folder import transfer_folder
from shared.transfer.ways.mapped import mapped_transport
from shared.worker.node import Parts
from tests.campaigns.throttle import Bucket

RATE, PASSED = struct.Struct("=d"), struct.Struct("=Q")
COPY_BYTES = 2**16
"""a copy is noted when it has ended; a slow one must be small, as a wire's chunks are"""


class Pace:
    """The file, mapped; as the campaign's end of it, it is one of the links of a slow cell."""

    def __init__(self, path: Path) -> None:
        """Made if it is absent: no limit, nothing copied."""
        with path.open("a+b") as file:
            file.truncate(RATE.size + PASSED.size)
            self._numbers = mmap.mmap(file.fileno(), 0)

    @property
    def bytes_per_s(self) -> float:
        rate: float = RATE.unpack_from(self._numbers)[0]
        return rate

    def set_rate(self, bytes_per_s: float) -> None:
        """0 lifts it."""
        RATE.pack_into(self._numbers, 0, bytes_per_s)

    @property
    def num_passed(self) -> int:
        passed: int = PASSED.unpack_from(self._numbers, RATE.size)[0]
        return passed

    def note_passed(self, num_bytes: int) -> None:
        PASSED.pack_into(self._numbers, RATE.size, num_bytes)


class PacedMover:
    """Keeps the promise of `BlockMover`, no faster than its pace."""

    def __init__(self, mover: BlockMover, groups: LayerGroups, pace: Pace) -> None:
        self._mover = mover
        self._groups = groups
        self._pace = pace
        self._bucket = Bucket()
        self.map = mover.map
        self.watch = mover.watch
        self.give_up = mover.give_up
        self.unmap = mover.unmap
        self.probe = mover.probe
        self.digests = mover.digests

    async def fetch(
        self,
        attempt: Attempt,
        source: str,
        source_blocks: Sequence[int],
        blocks: Sequence[int],
        groups: GroupRange,
        last: LastFetch | None = None,
    ) -> Words:
        self._bucket.bytes_per_s = self._pace.bytes_per_s
        await self._bucket.take(len(blocks) * self._groups.num_bytes(groups))
        self._pace.note_passed(self._bucket.num_passed)
        fetch = self._mover.fetch
        return await fetch(attempt, source, source_blocks, blocks, groups, last)


def build_service(pace: Pace, parts: Parts) -> DecodeService:
    """As that of `services.decode.main`, paced."""
    handover = parts.settings.handover
    limits = TransferLimits(
        lease_s=handover.lease_s, max_pulls=handover.max_pulls, max_copy_bytes=COPY_BYTES
    )
    assert isinstance(parts.mover, MoverClient)
    transport = mapped_transport(
        ShownPool(parts.memory, parts.pools),
        parts.incarnation,
        PacedMover(parts.mover, layer_groups(parts.memory.layout), pace),
        folder=transfer_folder(handover.transfer_dir),
        terms=Terms(parts.settings.network.cell_secret, limits, parts.clock),
    )
    return DecodeService(parts.state, parts.outbox, parts.engine, Pulls(transport), parts.clock)


if __name__ == "__main__":
    decode.build_service = partial(build_service, Pace(Path(sys.argv[1])))
    sys.exit(main(sys.argv[2:]))
