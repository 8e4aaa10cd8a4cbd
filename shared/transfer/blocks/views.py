"""Slices of the KV pool for blocks, or the same layer groups of them, neighbours joined."""

from collections.abc import Sequence

from shared.kv.memory import KVMemory


def block_views(memory: KVMemory, block_ids: Sequence[int], span: slice) -> list[memoryview]:
    """The span of each block's bytes in the order given, as few slices as their places allow."""
    size = memory.layout.block_bytes
    if span.stop - span.start < size:
        starts = [block_id * size for block_id in block_ids]
        return [memory.blocks[at + span.start : at + span.stop] for at in starts]
    views: list[memoryview] = []
    start = 0
    for end in range(1, len(block_ids) + 1):
        if end < len(block_ids) and block_ids[end] == block_ids[end - 1] + 1:
            continue
        views.append(memory.blocks[block_ids[start] * size : (block_ids[end - 1] + 1) * size])
        start = end
    return views
