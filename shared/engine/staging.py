"""Carries KV blocks between a GPU's pool and the host memory that transfers read and fill.

A transfer sees only host memory. Where the pool is device memory, a block that is handed over is
copied there and back under the same block id:

    prefill   blocks complete -> publish() -> reported as a piece (R11) -> retire()
    decode    blocks pulled and verified -> adopt() -> first decode step

The host bytes of a block are written by its owner alone, after the generation went up for that
owner (R6), and a block is not written again under a generation it was published with. So a
generation says of the host bytes what it says of the device's.

Host memory holds what is between these calls, and at most `keep_bytes` of retired blocks: the
next sequence with the same prefix publishes them again, without a copy.
"""

from collections.abc import Iterable, Iterator, Sequence

import torch

from shared.engine.kv_cache import pool_of
from shared.kv_memory import KVMemory

BOUNCE_BYTES = 16 * 2**20
"""pinned, so that copies run at the bus's speed; pinning all host memory would occupy it"""
KEEP_BYTES = 2**30

_NOT_HERE = -1


class HostStaging:
    """The host copy of some blocks of one device pool. Every call returns once its bytes are
    where they belong; called from the engine's thread only."""

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
        self._host = pool_of(memory).flatten(1)
        self._device = kv_pool.flatten(1)
        self._bounce = torch.empty(
            (max(1, bounce_bytes // block_bytes), self._host.shape[1]),
            dtype=kv_pool.dtype,
            pin_memory=kv_pool.is_cuda,
        )
        self._staged = [_NOT_HERE] * memory.num_blocks
        """generation whose content the host bytes of each block are"""
        self._retired: dict[int, None] = {}
        """blocks kept for nobody in particular, longest first"""
        self._max_retired = keep_bytes // block_bytes
        self._stream = torch.cuda.Stream(kv_pool.device) if kv_pool.is_cuda else None
        """for what need not wait until the step after is done too"""

    def mark(self) -> torch.cuda.Event | None:
        """The steps that were started so far; `publish` waits for them and no others."""
        if self._stream is None:
            return None
        event = torch.cuda.Event()
        event.record()
        return event

    def publish(self, block_ids: Sequence[int], after: torch.cuda.Event | None = None) -> None:
        """Device to host, all but what is there already, once the steps up to `after` are done."""
        generations = self._memory.generations
        missing = [block for block in block_ids if self._staged[block] != generations[block]]
        if self._stream is not None and after is not None:
            self._stream.wait_event(after)
        for chunk in self._chunks(missing):
            bounce = self._bounce[: len(chunk)]
            with torch.cuda.stream(self._stream if after is not None else None):
                bounce.copy_(self._device.index_select(0, self._index(chunk)))  # waits
            for block, content in zip(chunk, bounce, strict=True):
                self._host[block].copy_(content)
                self._staged[block] = generations[block]
        for block in block_ids:
            self._retired.pop(block, None)

    def adopt(self, block_ids: Sequence[int]) -> None:
        """Host to device, before anything the device does next; then the host forgets them."""
        for chunk in self._chunks(block_ids):
            bounce = self._bounce[: len(chunk)]
            for block, content in zip(chunk, bounce, strict=True):
                content.copy_(self._host[block])
            arrived = bounce.to(self._device.device)  # waits: the bounce buffer is used again
            self._device.index_copy_(0, self._index(chunk), arrived)
        for block in block_ids:
            self._discard(block)

    def retire(self, block_ids: Iterable[int]) -> None:
        """No transfer reads or fills these blocks any more."""
        generations = self._memory.generations
        for block in block_ids:
            if self._staged[block] == generations[block]:
                self._retired[block] = None
            else:
                self._discard(block)
        while len(self._retired) > self._max_retired:
            block = next(iter(self._retired))
            del self._retired[block]
            if self._staged[block] == generations[block]:  # else its next owner retires it
                self._discard(block)

    def _discard(self, block: int) -> None:
        self._staged[block] = _NOT_HERE
        self._memory.discard(block)

    def _chunks(self, block_ids: Sequence[int]) -> Iterator[Sequence[int]]:
        """As many blocks at a time as the bounce buffer holds."""
        size = len(self._bounce)
        for start in range(0, len(block_ids), size):
            yield block_ids[start : start + size]

    def _index(self, block_ids: Sequence[int]) -> torch.Tensor:
        return torch.tensor(list(block_ids), dtype=torch.int64, device=self._device.device)
