"""Copies between pools in GPU memory, on a stream of their own."""

import math
import os
import time
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from kernels.digest.block_digest import NUM_PIECES, WORD_BYTES, Row, block_digests
from kernels.launching.driver import DriverError
from kernels.sharing.copy_batch import Copies, as_copies, copy_batch
from kernels.sharing.copy_rows import copy_rows
from kernels.sharing.shared_memory import MappedMemory
from shared.kv.columns import Words
from shared.kv.digest import digest_of
from shared.kv.layer_groups import GroupRange, layer_groups
from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory
from shared.kv.probe import Probed, in_all, probe_bytes
from shared.kv.share import KVShare, holders_of
from shared.mover.copies import (
    NOT_LINKED,
    PROBE_ROOM_BYTES,
    CopyError,
    Mark,
    Region,
    Regions,
    with_blocks,
)
from shared.mover.head_rows import fetched_rows, staged_rows
from shared.mover.messages import MAX_DIGESTS
from shared.mover.runs import columns, joined


class _Source:
    """The mapped pool of each rank of another worker; of one with one rank, that of whole
    blocks."""

    def __init__(self, whole: KVLayout, num_blocks: int, descriptors: Sequence[int]) -> None:
        """For the current device. CopyError if they cannot be mapped."""
        size = len(descriptors)
        self.num_blocks = num_blocks
        self.memories: list[MappedMemory] = []
        try:
            self.shares = [KVShare(whole, rank, size) for rank in range(size)]
            for share, descriptor in zip(self.shares, descriptors, strict=True):
                num_bytes = self.num_bytes(share)
                memory = MappedMemory(descriptor, num_bytes + probe_bytes(num_bytes))
                self.memories.append(memory)
        except (DriverError, ValueError) as error:
            self.close()
            raise CopyError(f"the source's pool cannot be mapped: {error}") from None

    def num_bytes(self, share: KVShare) -> int:
        """Of all blocks in the pool of this share's rank."""
        return self.num_blocks * share.layout.block_bytes

    def close(self) -> None:
        for memory in self.memories:
            memory.close()


class _Arena:
    """The arena of the host-visible memory. It is pinned when it is first used: a worker that maps
    all its sources never pays for it."""

    def __init__(self, memory: KVMemory) -> None:
        self._memory = memory
        self._bytes = np.frombuffer(memory.arena, np.uint8)
        self._is_pinned = False

    def address(self, offset: int, num_bytes: int) -> int:
        """For copies of the current device. CopyError if the arena ends before."""
        if offset < 0 or offset + num_bytes > len(self._bytes):
            raise CopyError("the arena is smaller than what is to be staged")
        if not self._is_pinned:
            self._pin()
        return int(self._bytes.ctypes.data) + offset

    def close(self) -> None:
        if self._is_pinned:
            torch.cuda.cudart().cudaHostUnregister(self._bytes.ctypes.data)
            self._is_pinned = False

    def _pin(self) -> None:
        status = torch.cuda.cudart().cudaHostRegister(self._bytes.ctypes.data, len(self._bytes), 0)
        if int(status):
            raise CopyError(f"{len(self._bytes)} bytes of host memory cannot be pinned: {status}")
        self._is_pinned = True


class DeviceCopies:
    """Keeps the promise of `shared.mover.copies.Copies` for a pool that is GPU memory.

    Copies go to the copy engines and digests to short programs: a step that runs at the same time
    goes on. Of a pool that holds some heads, the digests of all ranks add up to those of whole
    blocks."""

    def __init__(
        self, kv_pool: torch.Tensor, memory: KVMemory, share: KVShare, has_probe: bool = True
    ) -> None:
        """`kv_pool`: [num_blocks, ...] of the share, contiguous. `memory`: what the host has of it,
        with an arena for whole blocks. `has_probe`: its probe follows the last block there too.
        ValueError if the share's heads are no whole words."""
        self._device = kv_pool.device
        self.share = share
        self._groups = share.groups
        self._row = Row.of_bytes(*share.row)
        self._arena = _Arena(memory)
        self._probe = memory.probe
        self._rows = kv_pool.flatten(1).view(torch.uint8)
        self._block_bytes = self._rows.shape[1]
        self._sources: dict[str, _Source] = {}
        with torch.cuda.device(self._device):
            self._stream = torch.cuda.Stream()
            self._done = torch.cuda.Event(blocking=True)
        self._bounds = torch.tensor(self._groups.bounds(WORD_BYTES), device=self._device)
        self._ids = torch.empty(MAX_DIGESTS, dtype=torch.int64, pin_memory=True)
        self._found = torch.empty(MAX_DIGESTS * NUM_PIECES, dtype=torch.int64, pin_memory=True)
        self._has_probe = has_probe
        self._probe_copy = torch.empty(0, dtype=torch.uint8, device=self._device)
        # No hand-over is to wait until the kernel is compiled or loaded.
        self.digests([0], self._groups.all, None)

    def regions(self) -> Regions:
        num_bytes = self._rows.numel()
        if self._has_probe:
            num_bytes += probe_bytes(num_bytes)
        torch.cuda.set_device(self._device)  # UCX asks the thread for its context
        self._probe_copy = self._probe_copy.new_empty(PROBE_ROOM_BYTES)
        return Regions(
            "VRAM",
            self._device.index,
            Region(self._rows.data_ptr(), num_bytes),
            Region(self._probe_copy.data_ptr(), len(self._probe_copy)),
        )

    def wait(self, after: Mark) -> None:
        if after is not None:
            after.synchronize()

    def read_digest(self, part: slice) -> int:
        with torch.cuda.stream(self._stream):
            return digest_of(self._probe_copy[part].cpu().numpy())

    def map(self, source: str, num_blocks: int, descriptors: Sequence[int]) -> None:
        self.unmap(source)
        try:
            with torch.cuda.device(self._device):
                found = _Source(self.share.whole, num_blocks, descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self._sources[source] = found

    def unmap(self, source: str) -> None:
        found = self._sources.pop(source, None)
        if found is not None:
            with torch.cuda.device(self._device):
                found.close()

    def probe(self, source: str) -> Probed:
        found = with_blocks(self._sources, source, ())
        probed = []
        with torch.cuda.stream(self._stream):
            for share, memory in zip(found.shares, found.memories, strict=True):
                end = found.num_bytes(share)
                copy = torch.empty(probe_bytes(end), dtype=torch.uint8, device=self._device)
                start_s = time.perf_counter()
                piece = copy.data_ptr(), memory.address + end, len(copy)
                copy_batch(as_copies([piece]), self._stream.cuda_stream)
                self._done.record()
                self._done.synchronize()
                seconds = time.perf_counter() - start_s
                probed.append(Probed(digest_of(copy.cpu().numpy()), len(copy), seconds))
        return in_all(probed)

    def fetch(
        self,
        source: str,
        source_blocks: Sequence[int],
        blocks: Sequence[int],
        groups: GroupRange,
        after: Mark,
    ) -> Words:
        found = with_blocks(self._sources, source, source_blocks)
        with torch.cuda.stream(self._stream):
            if after is not None:
                self._stream.wait_event(after)
            if self.share.is_whole and len(found.memories) == 1:
                address = found.memories[0].address
                copies = self._pieces(address, source_blocks, blocks, groups)
                copy_batch(copies, self._stream.cuda_stream)
            else:
                self._copy_heads(found, source_blocks, blocks, groups)
            return self._digest(blocks, groups)

    def stage(self, blocks: Sequence[int], groups: GroupRange, offset: int) -> None:
        arena = self._arena_address(blocks, groups, offset)
        with torch.cuda.stream(self._stream):
            self._copy_staged(blocks, groups, arena, back=False)
            self._done.record()
            self._done.synchronize()

    def fill(self, blocks: Sequence[int], groups: GroupRange, offset: int, after: Mark) -> Words:
        arena = self._arena_address(blocks, groups, offset)
        with torch.cuda.stream(self._stream):
            if after is not None:
                self._stream.wait_event(after)
            self._copy_staged(blocks, groups, arena, back=True)
            return self._digest(blocks, groups)

    def new_room(self, num_bytes: int) -> torch.Tensor:
        if not self.share.is_whole:
            raise CopyError(NOT_LINKED)
        try:
            return torch.empty(num_bytes, dtype=torch.uint8, device=self._device)
        except torch.OutOfMemoryError as error:
            raise CopyError(f"no memory for a link: {error}") from None

    def gather(self, blocks: Sequence[int], groups: GroupRange, room: torch.Tensor) -> None:
        with torch.cuda.stream(self._stream):
            self._copy_staged(blocks, groups, room.data_ptr(), back=False)
            self._done.record()
            self._done.synchronize()

    def gather_probe(self, room: torch.Tensor) -> int:
        room[: len(self._probe)] = torch.frombuffer(self._probe, dtype=torch.uint8)
        torch.cuda.current_stream(self._device).synchronize()
        return len(self._probe)

    def scatter(
        self, blocks: Sequence[int], groups: GroupRange, room: torch.Tensor, after: Mark
    ) -> Words:
        with torch.cuda.stream(self._stream):
            if after is not None:
                self._stream.wait_event(after)
            self._copy_staged(blocks, groups, room.data_ptr(), back=True)
            return self._digest(blocks, groups)

    def digests(self, blocks: Sequence[int], groups: GroupRange, after: Mark) -> Words:
        with torch.cuda.stream(self._stream):
            if after is not None:
                self._stream.wait_event(after)
            return self._digest(blocks, groups)

    def close(self) -> None:
        for source in list(self._sources):
            self.unmap(source)
        with torch.cuda.device(self._device):
            self._arena.close()

    def _copy_heads(
        self,
        source: _Source,
        source_blocks: Sequence[int],
        blocks: Sequence[int],
        groups: GroupRange,
    ) -> None:
        """Our heads out of the pools of the source's ranks."""
        base, size = self._rows.data_ptr(), self._block_bytes
        for owner, heads in holders_of(self.share, source.shares):
            theirs, far_size = source.memories[owner.rank].address, owner.layout.block_bytes
            copies = [
                (base + block * size, theirs + source_block * far_size)
                for source_block, block in zip(source_blocks, blocks, strict=True)
            ]
            rows = fetched_rows(self.share, owner, heads, copies, groups)
            copy_rows(rows, self._stream.cuda_stream)

    def _arena_address(self, blocks: Sequence[int], groups: GroupRange, offset: int) -> int:
        """Of whole layer groups of that many blocks."""
        num_bytes = layer_groups(self.share.whole).num_bytes(groups)
        with torch.cuda.device(self._device):
            return self._arena.address(offset, len(blocks) * num_bytes)

    def _copy_staged(
        self, blocks: Sequence[int], groups: GroupRange, arena: int, *, back: bool
    ) -> None:
        """What our pool holds of the blocks to an address in the arena, or back."""
        pool, stream = self._rows.data_ptr(), self._stream.cuda_stream
        if not self.share.is_whole:
            rows = staged_rows(self.share, blocks, groups, pool, arena)
            copy_rows([copy.back for copy in rows] if back else rows, stream)
            return
        num_bytes = self._groups.num_bytes(groups)
        pool += self._groups.span(groups).start
        near = pool + np.asarray(blocks, np.int64) * self._block_bytes
        far = arena + np.arange(len(blocks)) * num_bytes
        copy_batch(_copies(near, far, num_bytes) if back else _copies(far, near, num_bytes), stream)

    def _pieces(
        self,
        source: int,
        source_blocks: Sequence[int],
        blocks: Sequence[int],
        groups: GroupRange,
    ) -> Copies:
        """What lies together at both ends goes as one piece."""
        size, base = self._block_bytes, self._rows.data_ptr()
        if groups == self._groups.all:
            runs = joined(source_blocks, blocks)
            ends = base + runs.blocks * size, source + runs.source_blocks * size
            return _copies(*ends, runs.nums * size)
        span = self._groups.span(groups)
        theirs, ours = columns(source_blocks, blocks)
        ends = base + span.start + ours * size, source + span.start + theirs * size
        return _copies(*ends, span.stop - span.start)

    def _digest(self, blocks: Sequence[int], groups: GroupRange) -> Words:
        """Behind what is on the stream; returns once all of it is done."""
        ids = self._ids[: len(blocks)]
        ids.numpy()[:] = blocks
        shape = len(blocks), groups.num, NUM_PIECES
        found = self._found[: math.prod(shape)].view(shape)
        block_digests(self._rows, self._bounds, groups.first, ids, found, self._row)
        self._done.record()
        self._done.synchronize()
        words: Words = found.numpy().view(np.uint64).sum(2)
        return words


def _copies(
    destinations: NDArray[np.int64], sources: NDArray[np.int64], num_bytes: NDArray[np.int64] | int
) -> Copies:
    return np.stack(np.broadcast_arrays(destinations, sources, num_bytes)).view(np.uint64)
