"""A pool apart from the memory that sockets read, as a GPU's is, on a CPU."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from shared.kv.columns import Words
from shared.kv.layer_groups import GroupRange
from shared.kv.memory import KVMemory
from shared.mover.copies import CopyError
from shared.mover.host_copies import HostCopies


class StagedCopies(HostCopies):
    """Between the blocks of `far` and the arena of `host`."""

    def __init__(self, far: KVMemory, host: KVMemory) -> None:
        super().__init__(far)
        self._arena = np.frombuffer(host.arena, np.uint8)

    def stage(self, blocks: Sequence[int], groups: GroupRange, offset: int) -> None:
        for near, far in self._pairs(blocks, groups, offset):
            np.copyto(near, far)

    def fill(self, blocks: Sequence[int], groups: GroupRange, offset: int, after: Any) -> Words:
        for near, far in self._pairs(blocks, groups, offset):
            np.copyto(far, near)
        return self.digests(blocks, groups, after)

    def _pairs(
        self, blocks: Sequence[int], groups: GroupRange, offset: int
    ) -> Iterator[tuple[Any, Any]]:
        all_groups = self.share.groups
        span, num_bytes = all_groups.span(groups), all_groups.num_bytes(groups)
        if offset + len(blocks) * num_bytes > len(self._arena):
            raise CopyError("the arena ends before")
        for index, block in enumerate(blocks):
            start = offset + index * num_bytes
            yield self._arena[start : start + num_bytes], self._pool[block, span]
