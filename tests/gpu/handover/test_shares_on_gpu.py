"""Pools that hold some heads of each block, all on one GPU: one arena of whole blocks, and digests
that add up."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from kernels.sharing.shared_memory import SharedMemory
from shared.kv.layer_groups import GroupRange, layer_groups
from shared.kv.layout import KVLayout
from shared.kv.share import KVShare
from shared.mover.copies import NOT_LINKED, CopyError
from tests.support.kv_shares import (
    check_fetching,
    check_staging,
    copies_of,
    filled,
    heads_of,
    new_arena,
)

pytestmark = pytest.mark.gpu
LAYOUT = KVLayout("four layers", "bfloat16", 4, 2, 8, 128, 64)
ODD = KVLayout("odd heads", "float32", 5, 2, 8, 7, 22)


@pytest.mark.parametrize("layout", [LAYOUT, ODD])
def test_two_ranks_stage_what_one_and_four_take(layout: KVLayout) -> None:
    everything = layer_groups(layout).all
    for groups in (everything, GroupRange(0, 1), GroupRange(1, everything.num - 1)):
        check_staging(layout, "cuda", groups, 2, (1, 4))


@pytest.mark.parametrize(("owning", "taking"), [(1, 2), (2, 1), (2, 4), (4, 2), (8, 8)])
@pytest.mark.parametrize("layout", [LAYOUT, ODD])
def test_ranks_copy_their_heads_out_of_pools_of_any_ranks(
    layout: KVLayout, owning: int, taking: int
) -> None:
    kept = []

    def shown(pools: Sequence[NDArray[np.uint8]]) -> list[int]:
        memories = [SharedMemory(len(pool)) for pool in pools]
        for memory, pool in zip(memories, pools, strict=True):
            memory.tensor((len(pool),), torch.uint8).copy_(torch.from_numpy(pool))
        torch.cuda.synchronize()
        kept.extend(memories)
        return [memory.descriptor() for memory in memories]

    everything = layer_groups(layout).all
    for groups in (everything, GroupRange(1, everything.num - 1)):
        check_fetching(layout, "cuda", groups, shown, (owning, taking))
    for memory in kept:
        memory.close()


def test_they_are_not_linked() -> None:
    share = KVShare(LAYOUT, 1, 2)
    pool = torch.from_numpy(heads_of(filled(LAYOUT), share)).to("cuda")
    with (
        copies_of(pool, new_arena(LAYOUT), share) as copies,
        pytest.raises(CopyError, match=NOT_LINKED),
    ):
        copies.new_room(1)
