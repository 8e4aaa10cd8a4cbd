"""Copies between pools in GPU memory, on a stream of their own."""

import os
from collections.abc import Sequence

import torch

from kernels.digest.block_digest import block_digests
from kernels.launching.driver import DriverError
from kernels.sharing.copy_batch import copy_batch
from kernels.sharing.shared_memory import MappedMemory
from shared.mover.copies import CopyError
from shared.mover.messages import MAX_BLOCKS
from shared.mover.runs import joined


class _Source:
    """A mapped pool."""

    def __init__(self, memory: MappedMemory, num_blocks: int) -> None:
        self.memory = memory
        self.num_blocks = num_blocks


class DeviceCopies:
    """Keeps the promise of `shared.mover.copies.Copies` for a pool that is GPU memory.

    Copies go to the copy engines and digests to few programs: a step that runs at the same time
    goes on."""

    def __init__(self, kv_pool: torch.Tensor) -> None:
        """`kv_pool`: [num_blocks, ...], contiguous."""
        self._device = kv_pool.device
        self._rows = kv_pool.flatten(1).view(torch.uint8)
        self._block_bytes = self._rows.shape[1]
        self._sources: dict[str, _Source] = {}
        with torch.cuda.device(self._device):
            self._stream = torch.cuda.Stream()
            self._done = torch.cuda.Event(blocking=True)
        self._ids = torch.empty(MAX_BLOCKS, dtype=torch.int64, pin_memory=True)
        self._found = torch.empty(MAX_BLOCKS, dtype=torch.int64, pin_memory=True)
        self._device_ids = torch.empty(MAX_BLOCKS, dtype=torch.int64, device=self._device)
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
        after: torch.cuda.Event | None,
    ) -> tuple[int, ...]:
        found = self._sources.get(source)
        if found is None:
            raise CopyError("the source's pool is not mapped")
        if source_blocks and max(source_blocks) >= found.num_blocks:
            raise CopyError("the source names a block that its pool does not have")
        size, base = self._block_bytes, self._rows.data_ptr()
        copies = [
            (
                base + run.block * size,
                found.memory.address + run.source_block * size,
                run.num_blocks * size,
            )
            for run in joined(source_blocks, blocks)
        ]
        with torch.cuda.stream(self._stream):
            if after is not None:
                self._stream.wait_event(after)
            copy_batch(copies, self._stream.cuda_stream)
            return self._digest(blocks)

    def digests(self, blocks: Sequence[int]) -> tuple[int, ...]:
        with torch.cuda.stream(self._stream):
            return self._digest(blocks)

    def close(self) -> None:
        for source in list(self._sources):
            self.unmap(source)

    def _digest(self, blocks: Sequence[int]) -> tuple[int, ...]:
        """Behind what is on the stream; returns once all of it is done."""
        number = len(blocks)
        self._ids[:number] = torch.tensor(blocks, dtype=torch.int64)
        self._device_ids[:number].copy_(self._ids[:number], non_blocking=True)
        block_digests(self._rows, self._device_ids[:number], self._device_found[:number])
        self._found[:number].copy_(self._device_found[:number], non_blocking=True)
        self._done.record()
        self._done.synchronize()
        return tuple(word % 2**64 for word in self._found[:number].tolist())
