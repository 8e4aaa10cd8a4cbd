"""Which KV heads of a block each rank of a model holds.

    whole block   [layer][K, V][all heads][position][head_dim]       as it travels
    share         [layer][K, V][some heads][position][head_dim]      as it lies in a rank's pool

Heads are split evenly. Where there are more ranks than heads, several ranks hold copies of the same
head: the ranks with equal `copy` hold all heads between them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from shared.kv.layer_groups import GroupRange, LayerGroups, layer_groups
from shared.kv.layout import DTYPE_BYTES, KVLayout

MAX_RANKS = 8
"""that share a model"""


class HeadRow(NamedTuple):
    """The heads of one layer's K or V, in bytes."""

    own: int
    """of the rank's"""
    whole: int
    """of all"""
    first: int
    """byte of all at which the rank's begin"""


def heads_of_rank(total: int, rank: int, size: int) -> slice:
    """Of `total` heads those that one of `size` ranks holds; one number divides the other."""
    num_parts = min(size, total)
    width, part = total // num_parts, rank * num_parts // size
    return slice(part * width, (part + 1) * width)


@dataclass(frozen=True)
class KVShare:
    """Of `rank`, one of `size`. One number divides the other: heads and ranks."""

    whole: KVLayout
    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        heads = self.whole.num_kv_heads
        if not 0 <= self.rank < self.size or (heads % self.size and self.size % heads):
            raise ValueError(f"{heads} KV heads for rank {self.rank} of {self.size}")

    @property
    def layout(self) -> KVLayout:
        """Of the rank's own pool."""
        return replace(self.whole, num_kv_heads=self.heads.stop - self.heads.start)

    @property
    def groups(self) -> LayerGroups:
        """Those of the whole block, in bytes of the rank's pool."""
        return LayerGroups(layer_groups(self.whole).layer_ends, self.layout.layer_bytes)

    @property
    def heads(self) -> slice:
        """Of the whole block's."""
        return heads_of_rank(self.whole.num_kv_heads, self.rank, self.size)

    @property
    def head_bytes(self) -> int:
        """Of a head in one layer and plane of a block."""
        whole = self.whole
        return whole.block_size * whole.head_dim * DTYPE_BYTES[whole.dtype]

    @property
    def row(self) -> HeadRow:
        """A block is a row of these for each layer and plane."""
        heads, size = self.heads, self.head_bytes
        own = (heads.stop - heads.start) * size
        return HeadRow(own, self.whole.num_kv_heads * size, heads.start * size)

    @property
    def copy(self) -> int:
        """Of its heads: the first, or a later one."""
        return self.rank % max(1, self.size // self.whole.num_kv_heads)

    def layers(self, groups: GroupRange) -> slice:
        """That these groups have."""
        ends = (0, *self.groups.layer_ends)
        return slice(ends[groups.first], ends[groups.end])

    def own(self, heads: slice) -> slice:
        """Of these heads of the whole, by their places among the rank's."""
        return slice(heads.start - self.heads.start, heads.stop - self.heads.start)

    @property
    def is_whole(self) -> bool:
        return self.layout == self.whole


def holders_of(share: KVShare, owners: Sequence[KVShare]) -> Iterator[tuple[KVShare, slice]]:
    """Where the heads of a share lie among the shares of another worker's ranks: each of those that
    has some, with the heads, numbered as in the whole. Of copies the first is taken."""
    for owner in owners:
        first = max(share.heads.start, owner.heads.start)
        stop = min(share.heads.stop, owner.heads.stop)
        if owner.copy == 0 and first < stop:
            yield owner, slice(first, stop)
