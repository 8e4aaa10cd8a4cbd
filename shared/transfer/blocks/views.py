"""What there is of the KV pool to send, and to show."""

from collections.abc import Sequence

import numpy as np

from shared.kv.columns import pack_words
from shared.kv.digest import digest_of
from shared.kv.memory import KVMemory
from shared.kv.probe import probe_bytes
from shared.kv.share import KVShare


def block_views(memory: KVMemory, block_ids: Sequence[int], span: slice) -> list[memoryview]:
    """The span of each block's bytes in the order given, neighbours joined: as few slices as their
    places allow."""
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


def shown_probe(memory: KVMemory, num_ranks: int) -> bytes:
    """The digest of what follows the last block in each rank's pool, packed."""
    share = KVShare(memory.layout, size=num_ranks)
    shown = memory.probe[: probe_bytes(memory.num_blocks * share.layout.block_bytes)]
    return pack_words([digest_of(np.frombuffer(shown, np.uint8))])
