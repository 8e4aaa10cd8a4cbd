"""Blocks of a model that several GPUs share: whole in host memory, and a rank's heads of them."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from shared.kv.columns import Words
from shared.kv.digest import BlockDigests, digest_of
from shared.kv.layer_groups import GroupRange, layer_groups
from shared.kv.layout import DTYPE_BYTES, KVLayout
from shared.kv.memory import KVMemory
from shared.kv.probe import MAX_PROBE_BYTES, probe_bytes
from shared.kv.share import KVShare
from shared.mover.device_copies import DeviceCopies

NUM_BLOCKS = 6
BLOCKS, OTHERS = (4, 0, 5), (1, 3, 2)
ARENA_BLOCKS = 4


def filled(layout: KVLayout) -> KVMemory:
    """Whole blocks."""
    memory = KVMemory.create(layout, NUM_BLOCKS)
    memory.blocks[:] = np.random.default_rng(7).bytes(len(memory.blocks))
    return memory


def heads_of(memory: KVMemory, share: KVShare) -> NDArray[np.uint8]:
    """What the rank's own pool holds of them, u8[blocks, layers, planes, heads, bytes]."""
    layout = memory.layout
    head = layout.block_size * layout.head_dim * DTYPE_BYTES[layout.dtype]
    shape = (NUM_BLOCKS, layout.num_layers, layout.planes, layout.num_kv_heads, head)
    return memory.rows().reshape(shape)[:, :, :, share.heads].copy()


def new_arena(layout: KVLayout) -> KVMemory:
    return KVMemory.create(layout, NUM_BLOCKS, ARENA_BLOCKS * layout.block_bytes)


@contextmanager
def copies_of(pool: torch.Tensor, arena: KVMemory, share: KVShare) -> Iterator[DeviceCopies]:
    """With a mapping of the arena of its own, as in the rank's process."""
    memory = KVMemory(arena.layout, NUM_BLOCKS, os.dup(arena.fd), len(arena.arena))
    if pool.is_cuda:
        torch.cuda.synchronize()
    copies = DeviceCopies(pool, memory, share, has_probe=False)
    try:
        yield copies
    finally:
        copies.close()


def assert_adds_up(
    digests: Callable[[KVShare], Words], layout: KVLayout, size: int, wanted: Words
) -> None:
    """Over the ranks that hold all heads between them, of which there may be several sets."""
    sums: dict[int, Words] = {}
    for share in (KVShare(layout, rank, size) for rank in range(size)):
        sums[share.copy] = sums.get(share.copy, np.zeros_like(wanted)) + digests(share)
    assert len(sums) == max(1, size // layout.num_kv_heads)
    for found in sums.values():
        assert found.tolist() == wanted.tolist(), f"{size} ranks"


def check_staging(
    layout: KVLayout, device: str, groups: GroupRange, staging: int, taking: Sequence[int]
) -> None:
    """What `staging` ranks put into an arena are whole blocks; the ranks of each number of
    `taking` take their heads out of it; digests of all ranks add up."""
    blocks, arena = filled(layout), new_arena(layout)
    wanted = BlockDigests.of_pool(blocks).of(BLOCKS, groups)
    offset = layout.block_bytes // 2

    def stage(share: KVShare) -> Words:
        pool = torch.from_numpy(heads_of(blocks, share)).to(device)
        with copies_of(pool, arena, share) as copies:
            copies.stage(BLOCKS, groups, offset)
            return copies.digests(BLOCKS, groups, None)

    assert_adds_up(stage, layout, staging, wanted)
    staged = np.zeros(len(arena.arena), np.uint8)
    whole = blocks.rows()[list(BLOCKS), layer_groups(layout).span(groups)].reshape(-1)
    staged[offset : offset + len(whole)] = whole
    assert np.array_equal(np.frombuffer(arena.arena, np.uint8), staged)
    for size in taking:
        fill = partial(_fill, device, groups, blocks, arena)
        assert_adds_up(fill, layout, size, wanted)
    assert np.array_equal(np.frombuffer(arena.arena, np.uint8), staged)


def _fill(
    device: str, groups: GroupRange, blocks: KVMemory, arena: KVMemory, share: KVShare
) -> Words:
    """Digests of OTHERS, which the rank took out of the arena into a pool that was empty."""
    own = heads_of(blocks, share)
    pool = torch.zeros(own.shape, dtype=torch.uint8, device=device)
    with copies_of(pool, arena, share) as copies:
        digests = copies.fill(OTHERS, groups, arena.layout.block_bytes // 2, None)
    ends, taken = (0, *layer_groups(arena.layout).layer_ends), np.zeros_like(own)
    layers = slice(ends[groups.first], ends[groups.end])
    taken[list(OTHERS), layers] = own[list(BLOCKS), layers]
    assert np.array_equal(pool.cpu().numpy(), taken)
    return digests


def check_fetching(
    layout: KVLayout,
    device: str,
    groups: GroupRange,
    shown: Callable[[Sequence[NDArray[np.uint8]]], list[int]],
    sizes: tuple[int, int],
) -> None:
    """What the ranks of a worker of the first size hold, those of one of the second size copy, each
    its heads; digests of all ranks add up, and a probe reads right.

    `shown`: descriptors of pools with these bytes, which are those of the blocks and the probe."""
    owning, taking = sizes
    blocks = filled(layout)
    wanted = BlockDigests.of_pool(blocks).of(BLOCKS, groups)
    shares = [KVShare(layout, rank, owning) for rank in range(owning)]
    probe = np.random.default_rng(2).integers(0, 256, MAX_PROBE_BYTES, np.uint8)
    probe = probe[: probe_bytes(NUM_BLOCKS * shares[0].layout.block_bytes)]
    pools = [np.concatenate([heads_of(blocks, one).reshape(-1), probe]) for one in shares]

    def fetch(share: KVShare) -> Words:
        own = heads_of(blocks, share)
        pool = torch.zeros(own.shape, dtype=torch.uint8, device=device)
        with copies_of(pool, new_arena(layout), share) as copies:
            copies.map("p.1", NUM_BLOCKS, shown(pools))
            found = copies.probe("p.1")
            assert found[:2] == (digest_of(probe), owning * len(probe))
            digests = copies.fetch("p.1", BLOCKS, OTHERS, groups, None)
        taken = np.zeros_like(own)
        taken[list(OTHERS), share.layers(groups)] = own[list(BLOCKS), share.layers(groups)]
        assert np.array_equal(pool.cpu().numpy(), taken)
        return digests

    assert_adds_up(fetch, layout, taking, wanted)
