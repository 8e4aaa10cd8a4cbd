"""Copies of a device that is not there: its memory is the host's, and its driver copies at once."""

import ctypes
import mmap
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from kernels.digest import reference
from kernels.launching.driver import DriverError
from kernels.sharing import copy_batch, copy_rows
from shared.kv.layer_groups import GroupRange, layer_groups
from shared.kv.layout import KVLayout
from shared.kv.share import KVShare
from shared.mover import device_copies
from shared.mover.copies import NOT_LINKED, CopyError
from tests.support.absent_cuda import absent_torch
from tests.support.kv_shares import (
    check_fetching,
    check_staging,
    copies_of,
    filled,
    heads_of,
    new_arena,
)

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


class HostMapping:
    """Instead of MappedMemory: a file in memory."""

    def __init__(self, descriptor: int, num_bytes: int) -> None:
        if os.fstat(descriptor).st_size < num_bytes:
            raise DriverError("it is smaller")
        self._map = mmap.mmap(descriptor, num_bytes)
        self.address = np.frombuffer(self._map, np.uint8).ctypes.data

    def close(self) -> None:
        self._map.close()


def files_of(pools: Sequence[NDArray[np.uint8]]) -> list[int]:
    descriptors = [os.memfd_create("pool") for _ in pools]
    for descriptor, pool in zip(descriptors, pools, strict=True):
        os.write(descriptor, pool.tobytes())
    return descriptors


@pytest.mark.parametrize("taking", [1, 2, 4, 8])
@pytest.mark.parametrize("owning", [1, 2, 4, 8])
@pytest.mark.parametrize("layout", [LAYOUT, FEW_HEADS])
def test_ranks_copy_their_heads_out_of_pools_of_any_ranks(
    layout: KVLayout, owning: int, taking: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_copies, "MappedMemory", HostMapping)
    for groups in (layer_groups(layout).all, GroupRange(0, 1), GroupRange(1, 1)):
        check_fetching(layout, "cpu", groups, files_of, (owning, taking))


def test_pools_that_cannot_be_mapped_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_copies, "MappedMemory", HostMapping)
    share = KVShare(LAYOUT, 0, 2)
    pool = torch.from_numpy(heads_of(filled(LAYOUT), share))
    num_bytes = 2 * 6 * share.layout.block_bytes
    descriptors = files_of([np.zeros(num_bytes, np.uint8), np.zeros(1, np.uint8)])
    with copies_of(pool, new_arena(LAYOUT), share) as copies:
        with pytest.raises(CopyError, match="cannot be mapped: it is smaller"):
            copies.map("p.1", 6, descriptors)
        for descriptor in descriptors:
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(descriptor)
        with pytest.raises(CopyError, match="is not mapped"):
            copies.fetch("p.1", (0,), (0,), share.groups.all, None)
        with pytest.raises(CopyError, match="is not mapped"):
            copies.probe("p.1")
        with pytest.raises(CopyError, match=NOT_LINKED):
            copies.new_room(1)


def test_a_number_of_pools_that_no_model_is_split_over_is_refused() -> None:
    pool = torch.from_numpy(heads_of(filled(LAYOUT), KVShare(LAYOUT)))
    with copies_of(pool, new_arena(LAYOUT), KVShare(LAYOUT)) as copies:
        descriptors = files_of([np.zeros(1, np.uint8)] * 3)
        with pytest.raises(CopyError, match="8 KV heads for rank 0 of 3"):
            copies.map("p.1", 6, descriptors)
        for descriptor in descriptors:
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(descriptor)


def test_what_does_not_fit_the_arena_is_refused() -> None:
    """Whole blocks are what has to fit."""
    share = KVShare(LAYOUT, 0, 2)
    pool = torch.from_numpy(heads_of(filled(LAYOUT), share))
    with copies_of(pool, new_arena(LAYOUT), share) as copies:
        copies.stage((0, 1), share.groups.all, 2 * LAYOUT.block_bytes)
        with pytest.raises(CopyError, match="arena is smaller"):
            copies.stage((0, 1), share.groups.all, 2 * LAYOUT.block_bytes + 8)
