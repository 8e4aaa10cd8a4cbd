"""What is published of a prompt's blocks, as both ends keep it: columns, one row per block.

A tag is (block id, generation): where prefill keeps a block, and which rewriting of it. Digests
are per block and layer group. Columns and not objects: a prompt of 128k tokens has 8,192 blocks
of 8 groups, and SEAL names them all while a reader waits for its first step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shared.kv.columns import Ids, Words
from shared.kv.layer_groups import GroupRange


class Part(NamedTuple):
    """Consecutive layer groups of consecutive logical blocks."""

    first_block: int
    num_blocks: int
    groups: GroupRange

    @property
    def cells(self) -> tuple[slice, slice]:
        """Of a column per block and layer group."""
        rows = slice(self.first_block, self.first_block + self.num_blocks)
        return rows, slice(self.groups.first, self.groups.end)

    def continues_with(self, other: "Part") -> bool:
        """The other is of the same blocks the groups that follow."""
        return self[:2] == other[:2] and other.groups.first == self.groups.end

    def joined(self, other: "Part") -> "Part":
        """This part and one it continues with."""
        groups = GroupRange(self.groups.first, self.groups.num + other.groups.num)
        return Part(self.first_block, self.num_blocks, groups)


@dataclass(frozen=True, eq=False)
class Tags:
    """Of consecutive logical blocks."""

    block_ids: Ids
    generations: Words

    @classmethod
    def of(cls, block_ids: Sequence[int], generations: Sequence[int]) -> "Tags":
        return cls(np.array(block_ids, np.uint32), np.array(generations, np.uint64))

    def __len__(self) -> int:
        return len(self.block_ids)

    def __getitem__(self, rows: slice) -> "Tags":
        return Tags(self.block_ids[rows], self.generations[rows])

    def equal(self, other: "Tags") -> NDArray[np.bool_]:
        """[blocks]: which are the same."""
        same_block: NDArray[np.bool_] = self.block_ids == other.block_ids
        same_generation: NDArray[np.bool_] = self.generations == other.generations
        return same_block & same_generation

    def hold(self, generations: Words) -> bool:
        """R13: the blocks are in the pool with these generations, and have not been taken for
        anything else."""
        inside = bool((self.block_ids < len(generations)).all())
        return inside and bool((generations[self.block_ids] == self.generations).all())


@dataclass(frozen=True, eq=False)
class Publication:
    """These layer groups of these blocks are complete."""

    part: Part
    tags: Tags
    digests: Words
    """[blocks, groups]"""


class Manifest:
    """The publications in force for blocks 0, 1, ..."""

    def __init__(self, num_groups: int, num_blocks: int = 0) -> None:
        """Grows with what is published beyond `num_blocks`."""
        self.tags = Tags.of([0] * num_blocks, [0] * num_blocks)
        self.digests: Words = np.zeros((num_blocks, num_groups), np.uint64)
        self.published = np.zeros((num_blocks, num_groups), bool)
        """which cells are known; the others of the columns mean nothing"""

    def __len__(self) -> int:
        return len(self.published)

    @property
    def complete(self) -> bool:
        """There is a block, and of every one every group is published."""
        return len(self) > 0 and bool(self.published.all())

    def put(self, publication: Publication) -> NDArray[np.bool_]:
        """Cells [its blocks, all groups] that are published now and were not, or were otherwise.
        Under another tag nothing that was published of a block counts any more."""
        part = publication.part
        self._grow(part.first_block + part.num_blocks)
        rows, groups = part.cells
        kept = self.tags[rows].equal(publication.tags)
        self.published[rows][~kept] = False
        changed = np.zeros((part.num_blocks, self.published.shape[1]), bool)
        changed[:, groups] = ~self.published[rows, groups] | (
            self.digests[rows, groups] != publication.digests
        )
        self.tags.block_ids[rows] = publication.tags.block_ids
        self.tags.generations[rows] = publication.tags.generations
        self.digests[rows, groups] = publication.digests
        self.published[rows, groups] = True
        return changed

    def has(self, part: Part) -> bool:
        """All of it is published. Never of a part that is empty or out of range."""
        first, num_blocks, groups = part
        has_blocks = 0 <= first < first + num_blocks <= len(self)
        has_groups = 0 <= groups.first < groups.end <= self.published.shape[1]
        return has_blocks and has_groups and bool(self.published[part.cells].all())

    def whole(self) -> Publication:
        """All of it; it must be complete."""
        part = Part(0, len(self), GroupRange(0, self.published.shape[1]))
        return Publication(part, self.tags, self.digests)

    def _grow(self, num_blocks: int) -> None:
        missing = num_blocks - len(self)
        if missing <= 0:
            return
        self.tags = Tags(
            np.pad(self.tags.block_ids, (0, missing)), np.pad(self.tags.generations, (0, missing))
        )
        self.digests = np.pad(self.digests, ((0, missing), (0, 0)))
        self.published = np.pad(self.published, ((0, missing), (0, 0)))
