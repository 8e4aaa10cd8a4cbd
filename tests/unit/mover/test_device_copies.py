"""Copies of a device that is not there: its memory is the host's, and its driver copies at once."""

import ctypes
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

from kernels.digest import reference
from kernels.sharing import copy_batch, copy_rows
from shared.kv.layer_groups import GroupRange, layer_groups
from shared.kv.layout import KVLayout
from shared.kv.share import KVShare
from shared.mover import device_copies
from shared.mover.copies import NOT_READ, CopyError
from tests.support.absent_cuda import absent_torch
from tests.support.kv_shares import check_staging, copies_of, filled, heads_of, new_arena

LAYOUT = KVLayout("m", "bfloat16", 5, 2, 8, 3, 4)
FEW_HEADS = KVLayout("m", "float32", 4, 2, 2, 5, 2)
CASES = [(LAYOUT, 1), (LAYOUT, 2), (LAYOUT, 8), (FEW_HEADS, 2), (FEW_HEADS, 8)]


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the driver was asked for."""
    names = []

    def copy(name: str, *arguments: Any) -> None:
        names.append(name)
        if name == "cuMemcpyAsync":
            to, source, size, _ = arguments
            ctypes.memmove(to.value, source.value, size.value)
            return
        assert name == "cuMemcpy2DAsync_v2"
        rows = arguments[0]._obj
        for row in range(rows.height):
            to, source = rows.destination + row * rows.destination_pitch, rows.source
            ctypes.memmove(to, source + row * rows.source_pitch, rows.width)

    monkeypatch.setattr(device_copies, "torch", absent_torch())
    monkeypatch.setattr(device_copies, "block_digests", reference.block_digests)
    monkeypatch.setattr(copy_batch, "has_call", lambda _: False)
    for module in (copy_batch, copy_rows):
        monkeypatch.setattr(module, "call", copy)
    return names


@pytest.mark.parametrize(("layout", "size"), CASES)
def test_ranks_stage_whole_blocks_that_others_take(
    layout: KVLayout, size: int, calls: list[str]
) -> None:
    for groups in (layer_groups(layout).all, GroupRange(0, 1), GroupRange(1, 1)):
        check_staging(layout, "cpu", groups, size, (1, 2, 4))
    assert set(calls) == {"cuMemcpyAsync", "cuMemcpy2DAsync_v2"}


def test_a_rank_that_has_all_heads_copies_whole_blocks(calls: list[str]) -> None:
    layout = KVLayout("m", "float32", 4, 2, 1, 5, 1)  # of rows that are no whole words
    check_staging(layout, "cpu", layer_groups(layout).all, 2, (1, 4))
    assert set(calls) == {"cuMemcpyAsync"}


def refusals(*, shared: bool) -> list[str]:
    """What a pool says to a source that is none."""
    share = KVShare(LAYOUT, 0, 2 if shared else 1)
    groups, said = share.groups.all, []
    with copies_of(
        torch.from_numpy(heads_of(filled(LAYOUT), share)), new_arena(LAYOUT), share
    ) as it:
        asks: list[Callable[[], object]] = [
            lambda: it.probe("p.1"),
            lambda: it.fetch("p.1", (0,), (0,), groups, None),
        ]
        if shared:
            asks.append(it.regions)
        for ask in asks:
            with pytest.raises(CopyError) as refused:
                ask()
            said.append(str(refused.value))
    return said


def test_no_other_worker_reads_a_shared_pool() -> None:
    assert refusals(shared=True) == [NOT_READ] * 3
    assert refusals(shared=False) == ["the source's pool is not mapped"] * 2


def test_a_shared_pool_closes_what_it_does_not_map() -> None:
    share = KVShare(LAYOUT, 0, 2)
    reader, writer = os.pipe()
    os.close(writer)
    pool = torch.from_numpy(heads_of(filled(LAYOUT), share))
    with copies_of(pool, new_arena(LAYOUT), share) as copies:
        with pytest.raises(CopyError, match=NOT_READ):
            copies.map("p.1", 6, [reader])
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(reader)


def test_what_does_not_fit_the_arena_is_refused() -> None:
    """Whole blocks are what has to fit."""
    share = KVShare(LAYOUT, 0, 2)
    pool = torch.from_numpy(heads_of(filled(LAYOUT), share))
    with copies_of(pool, new_arena(LAYOUT), share) as copies:
        copies.stage((0, 1), share.groups.all, 2 * LAYOUT.block_bytes)
        with pytest.raises(CopyError, match="arena is smaller"):
            copies.stage((0, 1), share.groups.all, 2 * LAYOUT.block_bytes + 8)
