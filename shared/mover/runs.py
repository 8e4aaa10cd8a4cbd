"""Copies of single blocks joined to copies of neighbours."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.int64]


class Run(NamedTuple):
    """Consecutive blocks that go to consecutive blocks."""

    source_block: int
    block: int
    num_blocks: int


class Runs(NamedTuple):
    """A column of each."""

    source_blocks: Column
    blocks: Column
    nums: Column

    def each(self) -> Iterator[Run]:
        return map(Run, *(column.tolist() for column in self))


def columns(source_blocks: Sequence[int], blocks: Sequence[int]) -> tuple[Column, Column]:
    """ValueError unless there are as many of both."""
    if len(source_blocks) != len(blocks):
        raise ValueError(f"{len(source_blocks)} source blocks for {len(blocks)}")
    return np.asarray(source_blocks, np.int64), np.asarray(blocks, np.int64)


def joined(source_blocks: Sequence[int], blocks: Sequence[int]) -> Runs:
    """As few runs as copy each source block to the block at the same index. ValueError unless there
    are as many of both."""
    sources, targets = columns(source_blocks, blocks)
    begins = (np.diff(sources) != 1) | (np.diff(targets) != 1)
    starts = np.flatnonzero(np.concatenate([np.ones(min(1, len(targets)), bool), begins]))
    return Runs(sources[starts], targets[starts], np.diff(starts, append=len(targets)))
