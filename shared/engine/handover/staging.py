"""Carries KV blocks between a GPU's pool and the host memory that transfers read and fill.

A transfer sees only host memory. Where the pool is device memory, a block that is handed over is
copied there and back under the same block id:

    prefill   blocks complete -> publish() -> copied -> reported as a piece (R11) -> retire()
    decode    blocks pulled and verified -> adopt() -> copied -> first decode step

The host bytes of a block are written by its owner alone, after the generation went up for that
owner (R6), and a block is not written again under a generation it was published with. So a
generation says of the host bytes what it says of the device's.

A thread copies, one call after the other, so that no step waits; calls come from the engine's
thread, which frees no block that a copy may still touch.

Host memory holds what is between these calls, and at most `keep_bytes` of retired blocks: the
next sequence with the same prefix publishes them again, without a copy.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from shared.kv.memory import KVMemory

BOUNCE_BYTES = 16 * 2**20
"""pinned, so that copies run at the bus's speed; pinning all host memory would occupy it"""
KEEP_BYTES = 2**30
NUM_COPIERS = 4
"""threads between the pinned bytes and the others: one alone is slower than the bus, as most pages
of the others are touched for the first time"""

_NOT_HERE = -1


class HostStaging:
    """The host copy of some blocks of one device pool. Every future is done once its bytes are
    where they belong; they are done in the order of the calls."""

    def __init__(
        self,
        memory: KVMemory,
        kv_pool: torch.Tensor,
        *,
        bounce_bytes: int = BOUNCE_BYTES,
        keep_bytes: int = KEEP_BYTES,
    ) -> None:
        block_bytes = memory.layout.block_bytes
        self._memory = memory
        self._device = kv_pool.flatten(1).view(torch.uint8)
        self._bounce = torch.empty(
            (max(1, bounce_bytes // block_bytes), block_bytes),
            dtype=torch.uint8,
            pin_memory=kv_pool.is_cuda,
        )
        self._staged = [_NOT_HERE] * memory.num_blocks
        """generation whose content the host bytes of each block are, or will be once the copies
        that were ordered so far are done"""
        self._retired: dict[int, None] = {}
        """blocks kept for nobody in particular, longest first"""
        self._max_retired = keep_bytes // block_bytes
        self._stream = torch.cuda.Stream(kv_pool.device) if kv_pool.is_cuda else None
        self._thread = ThreadPoolExecutor(1, "kv-staging")
        self._copiers = ThreadPoolExecutor(NUM_COPIERS, "kv-copy")

    def mark(self) -> torch.cuda.Event | None:
        """The steps that were started so far; copies ordered with it wait for no others."""
        if self._stream is None:
            return None
        event = torch.cuda.Event()
        event.record()
        return event

    def parts(self, block_ids: Sequence[int]) -> list[Sequence[int]]:
        """The blocks in order, as many at a time as one call takes."""
        parts: list[Sequence[int]] = []
        start = num_missing = 0
        for end, block in enumerate(block_ids):
            if self._lacks(block):
                if num_missing == len(self._bounce):
                    parts.append(block_ids[start:end])
                    start, num_missing = end, 0
                num_missing += 1
        return [*parts, block_ids[start:]]

    def publish(self, part: Sequence[int], after: torch.cuda.Event | None) -> "Future[None]":
        """Device to host, all but what is there already, once the steps up to `after` are done."""
        missing = [block for block in part if self._lacks(block)]
        for block in part:
            self._staged[block] = self._memory.generations[block]
            self._retired.pop(block, None)
        return self._thread.submit(self._to_host, missing, after)

    def adopt(self, part: Sequence[int], after: torch.cuda.Event | None) -> "Future[None]":
        """Host to device, once the steps up to `after` are done; then the host forgets them.
        May be cancelled before it begins."""
        return self._thread.submit(self._to_device, part, after)

    def retire(self, block_ids: Iterable[int]) -> None:
        """No transfer reads or fills these blocks any more, and no copy touches them."""
        for block in block_ids:
            if self._lacks(block):
                self._discard(block)
            else:
                self._retired[block] = None
        while len(self._retired) > self._max_retired:
            block = next(iter(self._retired))
            del self._retired[block]
            if not self._lacks(block):  # else its next owner retires it
                self._discard(block)

    def close(self) -> None:
        """Leave out the copies that have not begun."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _lacks(self, block: int) -> bool:
        """Publishing the block takes a copy."""
        return self._staged[block] != self._memory.generations[block]

    def _discard(self, block: int) -> None:
        self._staged[block] = _NOT_HERE
        self._memory.discard(block)

    def _to_host(self, block_ids: Sequence[int], after: torch.cuda.Event | None) -> None:
        """In the thread."""
        with self._stream_after(after):
            for bounce, block in zip(self._bounce[: len(block_ids)], block_ids, strict=True):
                bounce.copy_(self._device[block], non_blocking=True)
        list(self._copiers.map(np.copyto, self._hosts(block_ids), self._bounce.numpy()))

    def _to_device(self, block_ids: Sequence[int], after: torch.cuda.Event | None) -> None:
        """In the thread."""
        list(self._copiers.map(np.copyto, self._bounce.numpy(), self._hosts(block_ids)))
        with self._stream_after(after):
            for bounce, block in zip(self._bounce[: len(block_ids)], block_ids, strict=True):
                self._device[block].copy_(bounce, non_blocking=True)
        for block in block_ids:
            self._discard(block)

    def _hosts(self, block_ids: Sequence[int]) -> list[NDArray[np.uint8]]:
        return [np.frombuffer(self._memory.block(block), np.uint8) for block in block_ids]

    @contextmanager
    def _stream_after(self, event: torch.cuda.Event | None) -> Iterator[None]:
        """Copies between pool and pinned bytes: begin after the event, and are done at the end."""
        if self._stream is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            if event is not None:
                self._stream.wait_event(event)
            yield
            self._stream.synchronize()
