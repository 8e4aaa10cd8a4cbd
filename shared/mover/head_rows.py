"""Where the heads of a rank lie: in its own pool, in an arena of whole blocks, in pools of others.

    pool     a block of some heads:   | own | own | own | ...
    arena    whole layer groups:      |  own  whole  |  own  whole  |  ...

There is a row for each layer and plane.
"""

from collections.abc import Iterable, Sequence

from kernels.sharing.copy_rows import RowCopy, Rows
from shared.kv.layer_groups import GroupRange, layer_groups
from shared.kv.share import KVShare


def staged_rows(
    share: KVShare, blocks: Sequence[int], groups: GroupRange, pool: int, arena: int
) -> list[RowCopy]:
    """What copies the share's heads of each block into the arena, one block after the other.
    `pool`, `arena`: addresses of the pool's first block, and of where the first one goes."""
    row, block_bytes = share.row, share.layout.block_bytes
    span = share.groups.span(groups)
    height = (span.stop - span.start) // row.own
    size = layer_groups(share.whole).num_bytes(groups)
    return [
        RowCopy(
            Rows(arena + index * size + row.first, row.whole),
            Rows(pool + block * block_bytes + span.start, row.own),
            row.own,
            height,
        )
        for index, block in enumerate(blocks)
    ]


def fetched_rows(
    share: KVShare,
    owner: KVShare,
    heads: slice,
    copies: Iterable[tuple[int, int]],
    groups: GroupRange,
) -> list[RowCopy]:
    """What copies heads, numbered as in the whole, from blocks of the pool of a rank of another
    worker. `copies`: addresses of our block and of theirs."""
    near, far, head = share.row, owner.row, share.head_bytes
    ours, theirs = share.groups.span(groups), owner.groups.span(groups)
    height = (ours.stop - ours.start) // near.own
    to, out_of = ours.start - near.first, theirs.start - far.first
    first, width = heads.start * head, (heads.stop - heads.start) * head
    return [
        RowCopy(
            Rows(block + to + first, near.own),
            Rows(source_block + out_of + first, far.own),
            width,
            height,
        )
        for block, source_block in copies
    ]
