"""A worker's blocks as the ranks of its model hold them, in host memory."""

from collections.abc import Sequence

import numpy as np

from shared.kv.columns import Words
from shared.kv.head_view import Bytes, heads_of
from shared.kv.layer_groups import GroupRange
from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory
from shared.kv.share import KVShare
from shared.mover.agent import MakeAgent
from shared.mover.client import MoverClient, data_socket_pair
from shared.mover.copies import Mark
from shared.mover.first_tokens import FirstTokens
from shared.mover.host_share_copies import HostShareCopies
from shared.mover.mover import Mover, Outside
from shared.mover.rank_movers import RankMovers
from tests.support.fakes.faulty_transport import Fault
from tests.support.fakes.local_agent import LocalAgent
from tests.support.fakes.strikes import Strikes


class RankPools:
    """Each rank's heads of whole blocks, and the host's memory that has none of them."""

    def __init__(self, layout: KVLayout, num_blocks: int, arena_bytes: int, size: int) -> None:
        self.host = KVMemory.create(layout, num_blocks, arena_bytes)
        self.shares = [KVShare(layout, rank, size) for rank in range(size)]
        self.pools = [KVMemory.create(share.layout, num_blocks) for share in self.shares]
        self.copies: list[FaultyShareCopies] = []
        """of each rank, once its mover has started"""
        for pool in self.pools:
            pool.probe[:] = self.host.probe[: len(pool.probe)]

    @property
    def descriptors(self) -> list[int]:
        """Of each rank's pool; they stay ours."""
        return [pool.fd for pool in self.pools]

    def write(self, block_id: int, written: bytes) -> None:
        whole = self._whole(np.frombuffer(written, np.uint8))
        for share, pool in zip(self.shares, self.pools, strict=True):
            heads_of(share, pool.rows())[block_id] = whole[:, :, share.heads]

    def read(self, block_id: int) -> bytes:
        """Nothing while ranks that hold copies of the same heads differ."""
        block = np.zeros(self.host.layout.block_bytes, np.uint8)
        whole = self._whole(block)
        for share, pool in zip(self.shares, self.pools, strict=True):
            own = heads_of(share, pool.rows())[block_id]
            if share.copy and not np.array_equal(whole[:, :, share.heads], own):
                return b""
            whole[:, :, share.heads] = own
        return block.tobytes()

    def start_movers(
        self, strikes: Strikes | None, first_tokens: FirstTokens, make_agent: MakeAgent
    ) -> RankMovers:
        """One for each rank; the first one meets the faults, and tells the step loop."""
        movers = []
        for share, pool in zip(self.shares, self.pools, strict=True):
            ours, theirs = data_socket_pair()
            met = strikes if share.rank == 0 else None
            copies = FaultyShareCopies(pool.rows(), self.host, share, met)
            self.copies.append(copies)
            digests = HostShareCopies(pool.rows(), self.host, share)
            told = None if share.rank else first_tokens
            outside = Outside(LocalAgent if share.rank else make_agent)
            Mover(theirs, copies, digests, None, told, outside=outside).start()
            movers.append(MoverClient(ours))
        return RankMovers(movers, self.shares)

    def _whole(self, block: Bytes) -> Bytes:
        """[layers, planes, all heads, bytes of a head], no copy."""
        whole: Bytes = heads_of(KVShare(self.host.layout), block[None])[0]
        return whole


class FaultyShareCopies(HostShareCopies):
    """The first half of the first block of each copy is older than the rest, with `half_read`
    between them."""

    def __init__(
        self, rows: Bytes, memory: KVMemory, share: KVShare, strikes: Strikes | None
    ) -> None:
        super().__init__(rows, memory, share)
        self._strikes = strikes

    def fetch(
        self,
        source: str,
        source_blocks: Sequence[int],
        blocks: Sequence[int],
        groups: GroupRange,
        after: Mark,
    ) -> Words:
        if self._strikes is None:
            return super().fetch(source, source_blocks, blocks, groups, after)
        fault = self._strikes.read()
        super().fetch(source, source_blocks[:1], blocks[:1], groups, after)
        span = self.share.groups.span(groups)
        first = self._rows[blocks[0], span.start : (span.start + span.stop) // 2].copy()
        self._strikes.half_read()
        super().fetch(source, source_blocks, blocks, groups, after)
        self._rows[blocks[0], span.start : span.start + len(first)] = first
        if fault is Fault.CORRUPT:
            self._rows[blocks[0], span.stop - 1] ^= 1
        return self._digests.of(blocks, groups)
