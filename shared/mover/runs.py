"""Copies of single blocks joined to copies of neighbours."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Run(NamedTuple):
    """Consecutive blocks that go to consecutive blocks."""

    source_block: int
    block: int
    num_blocks: int


def joined(source_blocks: Sequence[int], blocks: Sequence[int]) -> Iterator[Run]:
    """As few runs as copy each source block to the block at the same index."""
    start = 0
    for end in range(1, len(blocks) + 1):
        if (
            end < len(blocks)
            and blocks[end] == blocks[end - 1] + 1
            and source_blocks[end] == source_blocks[end - 1] + 1
        ):
            continue
        yield Run(source_blocks[start], blocks[start], end - start)
        start = end
