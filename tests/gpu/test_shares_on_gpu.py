"""Pools that hold some heads of each block, all on one GPU: one arena of whole blocks, and digests
that add up."""

import os

import pytest
import torch

from shared.kv.layer_groups import GroupRange, layer_groups
from shared.kv.layout import KVLayout
from shared.kv.share import KVShare
from shared.mover.copies import CopyError
from tests.support.kv_shares import check_staging, copies_of, filled, heads_of, new_arena

pytestmark = pytest.mark.gpu
LAYOUT = KVLayout("four layers", "bfloat16", 4, 2, 8, 128, 64)
ODD = KVLayout("odd heads", "float32", 5, 2, 8, 7, 22)


@pytest.mark.parametrize("layout", [LAYOUT, ODD])
def test_two_ranks_stage_what_one_and_four_take(layout: KVLayout) -> None:
    everything = layer_groups(layout).all
    for groups in (everything, GroupRange(0, 1), GroupRange(1, everything.num - 1)):
        check_staging(layout, "cuda", groups, 2, (1, 4))


def test_no_other_worker_reads_them() -> None:
    share = KVShare(LAYOUT, 1, 2)
    pool = torch.from_numpy(heads_of(filled(LAYOUT), share)).to("cuda")
    groups = share.groups.all
    reader, writer = os.pipe()
    os.close(writer)
    with copies_of(pool, new_arena(LAYOUT), share) as copies:
        with pytest.raises(CopyError, match="neither mapped nor read"):
            copies.map("p.1", 6, [reader])
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(reader)
        with pytest.raises(CopyError, match="neither mapped nor read"):
            copies.probe("p.1")
        with pytest.raises(CopyError, match="neither mapped nor read"):
            copies.fetch("p.1", (0,), (0,), groups, None)
        with pytest.raises(CopyError, match="neither mapped nor read"):
            copies.regions()
