"""What the driver is handed for a copy of rows, as cuda.h lays it out."""

import ctypes
import struct

import numpy as np
import pytest

from kernels.sharing import copy_rows as module
from kernels.sharing.copy_rows import RowCopy, Rows, copy_rows

CUDA_MEMCPY2D = struct.Struct("@NNi4xPNPN NNi4xPNPN NN")
"""x, y, type, host, device, array, pitch: of the source and of the destination; width, height"""
STREAM = 77


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """What a driver was asked to copy, which it did."""
    asked = []

    def call(name: str, copy: object, stream: ctypes.c_void_p) -> None:
        assert name == "cuMemcpy2DAsync_v2"
        assert stream.value == STREAM
        fields = getattr(copy, "_obj")  # noqa: B009
        assert ctypes.sizeof(fields) == CUDA_MEMCPY2D.size == 128
        words = CUDA_MEMCPY2D.unpack(bytes(fields))
        width, height = words[14:]
        places = []
        for x, y, kind, host, address, array, pitch in (words[:7], words[7:14]):
            assert not (x or y or host or array)
            assert kind == 4, "the driver is to look at the address"
            places.append((address, pitch))
        (source, source_pitch), (target, target_pitch) = places
        for row in range(height):
            ctypes.memmove(target + row * target_pitch, source + row * source_pitch, width)
        asked.append(words)

    monkeypatch.setattr(module, "call", call)
    return asked


def test_rows_arrive_where_they_belong(asked: list[tuple[int, ...]]) -> None:
    source = np.random.default_rng(1).integers(1, 256, (3, 5), np.uint8)
    target = np.zeros((4, 7), np.uint8)
    there, here = source.ctypes.data, target.ctypes.data
    copy = RowCopy(Rows(here + 1, 7), Rows(there + 2, 5), 3, 2)
    last = RowCopy(Rows(here + 3 * 7, 7), Rows(there + 2 * 5, 5), 5, 1)
    copy_rows([copy, last], STREAM)
    wanted = np.zeros((4, 7), np.uint8)
    wanted[:2, 1:4] = source[:2, 2:]
    wanted[3, :5] = source[2]
    assert np.array_equal(target, wanted)
    assert len(asked) == 2
    source[:] = 0
    copy_rows([copy.back], STREAM)
    assert np.array_equal(source[:2, 2:], wanted[:2, 1:4])
    assert int(np.count_nonzero(source)) == 6


def test_no_copy_is_no_call(asked: list[tuple[int, ...]]) -> None:
    copy_rows([], STREAM)
    assert not asked
