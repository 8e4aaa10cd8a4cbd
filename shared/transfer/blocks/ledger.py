"""Decode's account of one pull: what was published, what was read under which tag, what is left.

What is read and accounted for is a layer group of a block, a cell. It counts as held only under
the tag that is published for its block now and only after the digest of its bytes matched. SEAL's
manifest is the last publication: every cell whose tag or digest differs from it is read again
(R12). Pure; no I/O.
"""

from collections import deque
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from shared.errors import ProtocolError
from shared.kv.columns import Words
from shared.kv.layer_groups import GroupRange, LayerGroups
from shared.mover.messages import LastFetch, TokenPlace
from shared.transfer.blocks.manifest import Manifest, Part, Publication, Tags

MAX_READS_PER_TAG = 3
"""a cell whose bytes never match its digest is given up after this many reads"""

Versions = NDArray[np.int64]
"""[blocks, groups] of a part"""
Cells = NDArray[np.bool_]


class PullLedger:
    """The first `num_present_blocks` blocks are neither read nor accounted for."""

    def __init__(self, num_blocks: int, num_present_blocks: int, groups: LayerGroups) -> None:
        self.num_blocks = num_blocks
        self.num_present_blocks = num_present_blocks
        self.num_reread = 0
        """blocks of which something was read again"""
        self.sealed = False
        self._groups = groups
        self._group_bytes = [groups.num_bytes(GroupRange(at, 1)) for at in range(len(groups))]
        shape = num_blocks, len(groups)
        self._manifest = Manifest(len(groups), num_blocks)
        self._held = np.zeros(shape, bool)
        self._held[:num_present_blocks] = True
        self._pending = np.zeros(shape, np.int64)
        """reads queued or in flight"""
        self._num_pending = 0
        self._num_reads = np.zeros(shape, np.int64)
        """reads under the current tag whose bytes did not match"""
        self._versions = np.zeros(shape, np.int64)
        """how often the destination was overwritten"""
        self._wanted: deque[Part] = deque()

    def publish(self, publication: Publication) -> None:
        """What is new or has changed is wanted. ProtocolError out of range."""
        first, num_blocks, groups = publication.part
        if first < 0 or first + num_blocks > self.num_blocks:
            raise ProtocolError("prefill published blocks that the prompt does not have")
        if groups.first < 0 or groups.num < 1 or groups.end > len(self._groups):
            raise ProtocolError("prefill published layer groups that the model does not have")
        rows, _ = publication.part.cells
        changed = self._manifest.put(publication)
        is_read = np.arange(first, first + num_blocks)[:, None] >= self.num_present_blocks
        self._held[rows] &= ~is_read | (self._manifest.published[rows] & ~changed)
        self._num_reads[rows][changed] = 0
        self._want(first, changed & is_read)

    def seal(self, tags: Tags, digests: Words) -> None:
        """The manifest: the last publication."""
        if len(tags) != self.num_blocks:
            raise ProtocolError(f"sealed {len(tags)} blocks of a {self.num_blocks} block prompt")
        if digests.shape[1] != len(self._groups):
            raise ProtocolError(f"sealed {digests.shape[1]} of {len(self._groups)} layer groups")
        self.publish(Publication(Part(0, len(tags), self._groups.all), tags, digests))
        self.seal_published()

    def seal_published(self) -> None:
        """The manifest is what was published. What was given up is tried again. ProtocolError if
        it is not whole."""
        if not self._manifest.complete:
            raise ProtocolError("sealed a prompt before all of it was published")
        self.sealed = True
        given_up = ~self._held & (self._pending == 0)
        self._num_reads[given_up] = 0
        self._want(0, given_up)

    def next_read(self, max_bytes: int, *, joined: bool = False) -> Part | None:
        """The oldest that is wanted, at least a block of it and at most `max_bytes`; None when
        nothing is wanted. `joined`: with the groups of the same blocks that are wanted next."""
        if not self._wanted:
            return None
        part = self._wanted.popleft()
        while joined and self._wanted and part.continues_with(self._wanted[0]):
            part = part.joined(self._wanted.popleft())
        first, num, groups = part
        most = max(1, max_bytes // self._groups.num_bytes(groups))
        if num > most:
            self._wanted.appendleft(Part(first + most, num - most, groups))
        return Part(first, min(num, most), groups)

    def begin(self, part: Part) -> Versions:
        """The destination is about to be overwritten; returns the versions for `finish`."""
        self._held[part.cells] = False
        self._versions[part.cells] += 1
        return self._versions[part.cells].copy()

    def finish(self, part: Part, versions: Versions, tags: Tags, digests: Words) -> None:
        """What a read brought: the tags it was sent under, the digests [blocks, groups] of the
        bytes as they lie in the destination. A cell is held if both are the published ones and
        nothing has overwritten it since; otherwise it is wanted again, up to MAX_READS_PER_TAG
        times."""
        cells = part.cells
        self._pending[cells] -= 1
        self._num_pending -= digests.size
        current = self._versions[cells] == versions
        same_tag = self._manifest.tags[cells[0]].equal(tags)[:, None]
        matches = same_tag & (self._manifest.digests[cells] == digests)
        matches &= self._manifest.published[cells]
        self._held[cells] |= current & matches
        failed = current & ~matches
        self._num_reads[cells] += failed
        may_try = (self._pending[cells] == 0) & (self._num_reads[cells] < MAX_READS_PER_TAG)
        again = np.zeros((part.num_blocks, len(self._groups)), bool)
        again[:, cells[1]] = failed & may_try
        self._want(part.first_block, again)

    @property
    def num_wanted_bytes(self) -> int:
        """Of what `next_read` has to give."""
        return sum(part.num_blocks * self._groups.num_bytes(part.groups) for part in self._wanted)

    @property
    def num_bytes(self) -> int:
        """Of all blocks."""
        return self.num_blocks * self._groups.num_bytes(self._groups.all)

    @property
    def num_published_bytes(self) -> int:
        """Of what is published of all blocks, present ones included."""
        return int(self._manifest.published.sum(0) @ self._group_bytes)

    @property
    def idle(self) -> bool:
        """Sealed, and no read is queued or in flight: what is missing now stays missing."""
        return self.sealed and not self._num_pending

    @property
    def nears_end(self) -> bool:
        """Of the last block most layer groups are published."""
        last = self._manifest.published[-1:]
        return bool(2 * last.sum() > last.size)

    @property
    def complete(self) -> bool:
        """Idle, and everything is held under the manifest's tags."""
        return self.idle and bool(self._held.all())

    def last_fetch(self, num_cells: int) -> LastFetch | None:
        """Of a read of so many cells that has begun: what makes it the last one, if everything else
        is held."""
        missing = ~self._held
        if missing.sum() != num_cells:
            return None
        digests = self._manifest.digests[missing.any(1)][:, missing.any(0)]
        tags = self._manifest.tags
        place = TokenPlace(int(tags.block_ids[-1]), int(tags.generations[-1]))
        return LastFetch(place, digests)

    def tags(self) -> Tags:
        """Of the blocks that are read, for VERIFY."""
        return self._manifest.tags[self.num_present_blocks :]

    def tags_of(self, part: Part) -> Tags:
        """That are published for these blocks now; `next_read` gave the part."""
        rows, _ = part.cells
        return Tags(
            self._manifest.tags.block_ids[rows].copy(), self._manifest.tags.generations[rows].copy()
        )

    @property
    def num_read_blocks(self) -> int:
        """Distinct blocks of which something was received at least once."""
        return int((self._versions > 0).any(1).sum())

    def _want(self, first_block: int, cells: Cells) -> None:
        """Queue reads of cells [blocks, all groups], in as few parts as their places allow."""
        if not cells.any():
            return
        rows = slice(first_block, first_block + len(cells))
        seen = cells & ((self._versions[rows] > 0) | (self._pending[rows] > 0))
        self.num_reread += int(seen.any(1).sum())
        self._pending[rows] += cells
        self._num_pending += int(cells.sum())
        self._wanted.extend(_parts(first_block, cells))


def _parts(first_block: int, cells: Cells) -> Iterator[Part]:
    """The set cells, as rectangles: consecutive blocks of which the same groups are set."""
    differs = (cells[1:] != cells[:-1]).any(1)
    bounds = [0, *(np.flatnonzero(differs) + 1).tolist(), len(cells)]
    for start, end in pairwise(bounds):
        for groups in _runs(cells[start]):
            yield Part(first_block + start, end - start, groups)


def _runs(cells: Cells) -> Iterator[GroupRange]:
    """Consecutive groups that are set."""
    edges = np.flatnonzero(np.diff(cells, prepend=False, append=False)).tolist()
    for first, end in zip(edges[::2], edges[1::2], strict=True):
        yield GroupRange(first, end - first)
