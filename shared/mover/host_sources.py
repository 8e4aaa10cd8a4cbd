"""Pools of other workers of this host, in host memory: mapped, and copied out of."""

import os
import time
from collections.abc import Sequence

import numpy as np

from shared.kv.digest import digest_of
from shared.kv.head_view import Bytes, heads_of
from shared.kv.layer_groups import GroupRange
from shared.kv.layout import KVLayout
from shared.kv.peer_memory import PeerBlocks
from shared.kv.probe import MAX_PROBE_BYTES, Probed, in_all
from shared.kv.share import KVShare, holders_of
from shared.mover.copies import CopyError, with_blocks


class HostSource:
    """The pool of each of its owner's ranks; of an owner with one rank, that of whole blocks."""

    def __init__(self, whole: KVLayout, num_blocks: int, descriptors: Sequence[int]) -> None:
        """A descriptor for each rank; takes them over. CopyError if they are no pools of this
        layout and size."""
        self.num_blocks = num_blocks
        self._parts: list[tuple[KVShare, PeerBlocks]] = []
        size, left = len(descriptors), list(descriptors)
        try:
            for share in [KVShare(whole, rank, size) for rank in range(size)]:
                blocks = PeerBlocks(share.layout, num_blocks, left.pop(0))
                self._parts.append((share, blocks))
        except (OSError, ValueError) as error:
            self.close()
            for descriptor in left:
                os.close(descriptor)
            raise CopyError(f"the source's pool cannot be mapped: {error}") from None

    @property
    def rows(self) -> Bytes | None:
        """[num_blocks, bytes of a whole block]; None where several ranks have it. Nobody keeps a
        slice of it."""
        return self._parts[0][1].rows if len(self._parts) == 1 else None

    def probe(self, copy: Bytes) -> Probed:
        """Copy what follows the last block of each pool into `copy`. The digest is that of all of
        them, or of the one that differs."""
        found = []
        for _, blocks in self._parts:
            part = copy[: len(blocks.probe)]
            part.fill(0)
            start_s = time.perf_counter()
            np.copyto(part, blocks.probe)
            seconds = time.perf_counter() - start_s
            found.append(Probed(digest_of(part), len(part), seconds))
        return in_all(found)

    def copy(
        self,
        source_blocks: Sequence[int],
        blocks: Sequence[int],
        groups: GroupRange,
        rows: Bytes,
        share: KVShare,
    ) -> None:
        """Layer groups of blocks into `blocks` of a pool of ours: `rows` [num_blocks, bytes of the
        share]."""
        layers = share.layers(groups)
        theirs, ours = np.asarray(source_blocks, np.int64), np.asarray(blocks, np.int64)
        into = heads_of(share, rows)
        for owner, heads in holders_of(share, [part for part, _ in self._parts]):
            out_of = heads_of(owner, self._parts[owner.rank][1].rows)
            into[ours, layers, :, share.own(heads)] = out_of[theirs, layers, :, owner.own(heads)]

    def forget_pages(self) -> None:
        """What was read no longer counts as memory of this process."""
        for _, blocks in self._parts:
            blocks.forget_pages()

    def close(self) -> None:
        for _, blocks in self._parts:
            blocks.close()
        self._parts.clear()


class HostSources:
    """By the incarnation of their owners."""

    def __init__(self, whole: KVLayout) -> None:
        self._whole = whole
        self._sources: dict[str, HostSource] = {}
        self._probe_copy: Bytes = np.ones(MAX_PROBE_BYTES, np.uint8)
        digest_of(self._probe_copy)  # the first of a process is slow: not while a pull waits

    def map(self, source: str, num_blocks: int, descriptors: Sequence[int]) -> None:
        """See `shared.mover.copies.Copies.map`."""
        self.unmap(source)
        self._sources[source] = HostSource(self._whole, num_blocks, descriptors)

    def unmap(self, source: str) -> None:
        found = self._sources.pop(source, None)
        if found is not None:
            found.close()

    def get(self, source: str) -> HostSource | None:
        return self._sources.get(source)

    def with_blocks(self, source: str, blocks: Sequence[int]) -> HostSource:
        """CopyError if it is not mapped, or has no such blocks."""
        return with_blocks(self._sources, source, blocks)

    def probe(self, source: str) -> Probed:
        """See `shared.mover.copies.Copies.probe`."""
        return self.with_blocks(source, ()).probe(self._probe_copy)

    def close(self) -> None:
        for source in list(self._sources):
            self.unmap(source)
