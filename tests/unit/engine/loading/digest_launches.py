"""Prints under which keys Triton's cache knows the digest kernel: as a start lists it, and as the
mover of each rank launches it. In a process of its own: Triton must be imported without its
interpreter."""

import json
import sys

import torch

from kernels.digest.block_digest import block_digest_kernel
from kernels.launching.listing import listing
from shared.engine.loading.start_kernels import _launch_digests
from shared.kv.layout import KVLayout
from shared.kv.share import KVShare
from shared.mover import device_copies
from tests.support.absent_cuda import absent_torch
from tests.support.kv_shares import copies_of, filled, heads_of, new_arena

LAYOUT = KVLayout("m", "bfloat16", 4, 2, 8, 6, 2)
"""heads of three words, of which not all begin where Triton would call it aligned"""
GENERATION = (9, 0)
SIZES = (1, 2, 4)


def keys_of(share: KVShare) -> dict[str, list[str]]:
    block_digest_kernel.device_caches.clear()
    with listing(GENERATION) as listed:
        _launch_digests(share)
    block_digest_kernel.device_caches.clear()
    pool = torch.from_numpy(heads_of(filled(LAYOUT), share))
    with listing(GENERATION) as launched, copies_of(pool, new_arena(LAYOUT), share):
        return {"listed": [*listed], "launched": [*launched]}


if __name__ == "__main__":
    setattr(device_copies, "torch", absent_torch())  # noqa: B010
    for size in SIZES:
        for rank in range(size):
            line = {"size": size, "rank": rank, **keys_of(KVShare(LAYOUT, rank, size))}
            sys.stdout.write(json.dumps(line) + "\n")
