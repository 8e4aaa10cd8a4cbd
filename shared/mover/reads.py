"""Which bytes of another worker's pool go where in ours, when it takes no part in that."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from shared.kv.layer_groups import GroupRange
from shared.kv.share import KVShare, holders_of
from shared.mover.head_rows import fetched_rows
from shared.mover.runs import Column, columns, joined


class Reads(NamedTuple):
    """A column of each."""

    offsets: Column
    """in the source's pool"""
    addresses: Column
    """of ours, that the bytes go to"""
    nums: Column
    """of bytes"""

    def cut(self, most: int) -> "Iterator[Reads]":
        """Parts of at most `most` reads."""
        for start in range(0, len(self.nums), most):
            yield Reads(*(column[start : start + most] for column in self))


class Holding(NamedTuple):
    """What one of a source's ranks has for a rank of ours."""

    owner: KVShare
    heads: slice
    """of the whole"""


def holdings(share: KVShare, num_ranks: int) -> list[Holding]:
    """Those of a source of so many ranks that hold our heads between them. ValueError if its model
    cannot be shared so."""
    owners = [KVShare(share.whole, rank, num_ranks) for rank in range(num_ranks)]
    return [Holding(owner, heads) for owner, heads in holders_of(share, owners)]


def read_at(offset: int, address: int, num_bytes: int) -> Reads:
    """A single one."""
    return Reads(*(np.array([number], np.int64) for number in (offset, address, num_bytes)))


def reads_of(
    share: KVShare,
    held: Holding,
    pool: int,
    source_blocks: Sequence[int],
    blocks: Sequence[int],
    groups: GroupRange,
) -> Reads:
    """Of layer groups of blocks: what lies together at both ends is one read. `pool`: the address
    of our own."""
    if held.owner.heads != share.heads:
        return _rows(share, held, pool, columns(source_blocks, blocks), groups)
    size = share.layout.block_bytes
    if groups == share.groups.all:
        runs = joined(source_blocks, blocks)
        return Reads(runs.source_blocks * size, pool + runs.blocks * size, runs.nums * size)
    theirs, ours = columns(source_blocks, blocks)
    span = share.groups.span(groups)
    nums = np.full(len(ours), span.stop - span.start)
    return Reads(theirs * size + span.start, pool + ours * size + span.start, nums)


def _rows(
    share: KVShare, held: Holding, pool: int, both: tuple[Column, Column], groups: GroupRange
) -> Reads:
    """One for each layer and plane of each block. `both`: blocks of the source and of ours."""
    (first,) = fetched_rows(share, held.owner, held.heads, [(0, 0)], groups)
    steps, (theirs, ours) = np.arange(first.height), both
    far = theirs[:, None] * held.owner.layout.block_bytes + steps * first.source.pitch
    near = ours[:, None] * share.layout.block_bytes + steps * first.destination.pitch
    return Reads(
        (first.source.address + far).ravel(),
        (pool + first.destination.address + near).ravel(),
        np.full(far.size, first.width),
    )
