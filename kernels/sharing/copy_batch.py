"""Copies of many pieces of GPU memory, by the copy engines."""

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p

import numpy as np
from numpy.typing import NDArray

from kernels.launching.driver import Location, call, has_call

STREAM_ORDER = 1
MOST_AT_ONCE = 64
"""pieces of one call: the engines copy them while the host passes the next ones on, at some 0.6 us
each. With fewer, a batch is done a little sooner, and many batches later."""

Copies = NDArray[np.uint64]
"""[3, N], contiguous: destination addresses, source addresses, bytes"""


class _Attributes(ctypes.Structure):
    _fields_ = (
        ("source_order", c_int),
        ("source_hint", Location),
        ("destination_hint", Location),
        ("flags", c_uint),
    )


def copy_batch(copies: Copies, stream: int) -> None:
    """Make each copy, in no particular order, after what is on the stream. `stream`: a handle, not
    that of the default stream. DriverError if the driver refuses; then some of it may be copied."""
    number = copies.shape[1]
    base, row_bytes = copies.ctypes.data, number * copies.itemsize
    rows = [base, base + row_bytes, base + 2 * row_bytes]
    for start in range(0, number, MOST_AT_ONCE):
        columns = [c_void_p(row + start * copies.itemsize) for row in rows]
        _copy(columns, min(MOST_AT_ONCE, number - start), c_void_p(stream))


def as_copies(pieces: Sequence[tuple[int, int, int]]) -> Copies:
    """Of (destination address, source address, bytes) each."""
    return np.ascontiguousarray(np.array(pieces, np.uint64).reshape(-1, 3).T)


def _copy(columns: list[c_void_p], number: int, stream: c_void_p) -> None:
    attributes = _Attributes(source_order=STREAM_ORDER)
    first = c_size_t(0)
    arguments = *columns, c_size_t(number), byref(attributes), byref(first), c_size_t(1)
    if has_call("cuMemcpyBatchAsync_v2"):
        call("cuMemcpyBatchAsync_v2", *arguments, stream)
    elif has_call("cuMemcpyBatchAsync"):
        failed = c_size_t()
        call("cuMemcpyBatchAsync", *arguments, byref(failed), stream)
    else:
        _copy_each(columns, number, stream)


def _copy_each(columns: list[c_void_p], number: int, stream: c_void_p) -> None:
    """By a driver that takes no batch."""
    rows = [ctypes.cast(column, ctypes.POINTER(c_uint64)) for column in columns]
    for index in range(number):
        destination, source, num_bytes = (row[index] for row in rows)
        call("cuMemcpyAsync", c_uint64(destination), c_uint64(source), c_size_t(num_bytes), stream)
