"""Copies of many pieces of GPU memory in one call of the driver, by the copy engines."""

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p

from kernels.launching.driver import Location, call, has_call

STREAM_ORDER = 1


class _Attributes(ctypes.Structure):
    _fields_ = (
        ("source_order", c_int),
        ("source_hint", Location),
        ("destination_hint", Location),
        ("flags", c_uint),
    )


def copy_batch(copies: Sequence[tuple[int, int, int]], stream: int) -> None:
    """Copy each (destination address, source address, bytes), in no particular order, after what
    is on the stream. `stream`: a handle, not that of the default stream. DriverError if the driver
    refuses; then some of it may be copied."""
    if not copies:
        return
    number = len(copies)
    destinations, sources, sizes = zip(*copies, strict=True)
    columns = (
        (c_uint64 * number)(*destinations),
        (c_uint64 * number)(*sources),
        (c_size_t * number)(*sizes),
        c_size_t(number),
    )
    attributes = _Attributes(source_order=STREAM_ORDER)
    first = c_size_t(0)
    same_for_all = byref(attributes), byref(first), c_size_t(1)
    if has_call("cuMemcpyBatchAsync_v2"):
        call("cuMemcpyBatchAsync_v2", *columns, *same_for_all, c_void_p(stream))
    elif has_call("cuMemcpyBatchAsync"):
        failed = c_size_t()
        call("cuMemcpyBatchAsync", *columns, *same_for_all, byref(failed), c_void_p(stream))
    else:
        for destination, source, num_bytes in copies:
            call(
                "cuMemcpyAsync",
                c_uint64(destination),
                c_uint64(source),
                c_size_t(num_bytes),
                c_void_p(stream),
            )
