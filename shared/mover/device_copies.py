"""Copies between pools in GPU memory, on a stream of their own."""

import os
from collections.abc import Sequence

import numpy as np
import torch

from kernels.digest.block_digest import block_digests
from kernels.launching.driver import DriverError
from kernels.sharing.copy_batch import copy_batch
from kernels.sharing.shared_memory import MappedMemory
from shared.kv.columns import Words
from shared.kv.layer_groups import GroupRange, LayerGroups
from shared.mover.copies import CopyError, Mark
from shared.mover.messages import MAX_DIGESTS
from shared.mover.runs import joined


class _Source:
    """A mapped pool."""

    def __init__(self, memory: MappedMemory, num_blocks: int) -> None:
        self.memory = memory
        self.num_blocks = num_blocks


class DeviceCopies:
    """Keeps the promise of `shared.mover.copies.Copies` for a pool that is GPU memory.

    Copies go to the copy engines and digests to short programs: a step that runs at the same time
    goes on."""

    def __init__(self, kv_pool: torch.Tensor, groups: LayerGroups) -> None:
        """`kv_pool`: [num_blocks, ...], contiguous. `groups`: of its layout."""
        self._device = kv_pool.device
        self._groups = groups
        self._rows = kv_pool.flatten(1).view(torch.uint8)
        self._block_bytes = self._rows.shape[1]
        self._sources: dict[str, _Source] = {}
        with torch.cuda.device(self._device):
            self._stream = torch.cuda.Stream()
            self._done = torch.cuda.Event(blocking=True)
        self._ids = torch.empty(MAX_DIGESTS, dtype=torch.int64, pin_memory=True)
        self._found = torch.empty(MAX_DIGESTS, dtype=torch.int64, pin_memory=True)
        self._device_ids = torch.empty(MAX_DIGESTS, dtype=torch.int64, device=self._device)
        self._device_found = torch.empty_like(self._device_ids)

    def map(self, source: str, num_blocks: int, descriptors: Sequence[int]) -> None:
        self.unmap(source)
        try:
            with torch.cuda.device(self._device):
                memory = MappedMemory(descriptors[0], num_blocks * self._block_bytes)
        except DriverError as error:
            raise CopyError(f"the source's pool cannot be mapped: {error}") from None
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self._sources[source] = _Source(memory, num_blocks)

    def unmap(self, source: str) -> None:
        found = self._sources.pop(source, None)
        if found is not None:
            with torch.cuda.device(self._device):
                found.memory.close()

    def fetch(
        self,
        source: str,
        source_blocks: Sequence[int],
        blocks: Sequence[int],
        groups: GroupRange,
        after: Mark,
    ) -> Words:
        found = self._sources.get(source)
        if found is None:
            raise CopyError("the source's pool is not mapped")
        if source_blocks and max(source_blocks) >= found.num_blocks:
            raise CopyError("the source names a block that its pool does not have")
        copies = self._pieces(found.memory.address, source_blocks, blocks, groups)
        with torch.cuda.stream(self._stream):
            if after is not None:
                self._stream.wait_event(after)
            copy_batch(copies, self._stream.cuda_stream)
            return self._digest(blocks, groups)

    def digests(self, blocks: Sequence[int], groups: GroupRange, after: Mark) -> Words:
        with torch.cuda.stream(self._stream):
            if after is not None:
                self._stream.wait_event(after)
            return self._digest(blocks, groups)

    def close(self) -> None:
        for source in list(self._sources):
            self.unmap(source)

    def _pieces(
        self,
        source: int,
        source_blocks: Sequence[int],
        blocks: Sequence[int],
        groups: GroupRange,
    ) -> list[tuple[int, int, int]]:
        """(destination address, source address, bytes) of what lies together at both ends."""
        size, base = self._block_bytes, self._rows.data_ptr()
        if groups == self._groups.all:
            return [
                (base + run.block * size, source + run.source_block * size, run.num_blocks * size)
                for run in joined(source_blocks, blocks)
            ]
        span = self._groups.span(groups)
        base, source, num_bytes = base + span.start, source + span.start, span.stop - span.start
        return [
            (base + block * size, source + source_block * size, num_bytes)
            for source_block, block in zip(source_blocks, blocks, strict=True)
        ]

    def _digest(self, blocks: Sequence[int], groups: GroupRange) -> Words:
        """Behind what is on the stream; returns once all of it is done."""
        num_blocks, number = len(blocks), len(blocks) * groups.num
        self._ids[:num_blocks] = torch.tensor(blocks, dtype=torch.int64)
        ids = self._device_ids[:num_blocks]
        ids.copy_(self._ids[:num_blocks], non_blocking=True)
        found = self._device_found[:number].view(groups.num, num_blocks)
        for column in range(groups.num):
            span = self._groups.span(GroupRange(groups.first + column, 1))
            block_digests(self._rows[:, span], ids, found[column])
        self._found[:number].copy_(self._device_found[:number], non_blocking=True)
        self._done.record()
        self._done.synchronize()
        words: Words = self._found[:number].numpy().view(np.uint64)
        return words.reshape(groups.num, num_blocks).T.copy()
