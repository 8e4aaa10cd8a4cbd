"""Copies of rows at equal distances, one call of the driver for each, by the copy engines."""

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p
from typing import NamedTuple

from kernels.launching.driver import call

UNIFIED = 4
"""CU_MEMORYTYPE_UNIFIED: the driver knows by the address whose memory it is"""


class Rows(NamedTuple):
    """Where rows of bytes begin."""

    address: int
    """of the first"""
    pitch: int
    """bytes from one to the next"""


class RowCopy(NamedTuple):
    """`height` rows of `width` bytes; no pitch is less than the width."""

    destination: Rows
    source: Rows
    width: int
    height: int

    @property
    def back(self) -> "RowCopy":
        """The way back."""
        return RowCopy(self.source, self.destination, self.width, self.height)


class _Copy(ctypes.Structure):
    """CUDA_MEMCPY2D."""

    _fields_ = (
        ("source_x", c_size_t),
        ("source_y", c_size_t),
        ("source_type", c_int),
        ("source_host", c_void_p),
        ("source", c_uint64),
        ("source_array", c_void_p),
        ("source_pitch", c_size_t),
        ("destination_x", c_size_t),
        ("destination_y", c_size_t),
        ("destination_type", c_int),
        ("destination_host", c_void_p),
        ("destination", c_uint64),
        ("destination_array", c_void_p),
        ("destination_pitch", c_size_t),
        ("width", c_size_t),
        ("height", c_size_t),
    )


def copy_rows(copies: Sequence[RowCopy], stream: int) -> None:
    """Make the copies, in GPU memory or pinned memory of the host, after what is on the stream.
    `stream`: a handle. DriverError if the driver refuses; then some of it may be copied."""
    for destination, source, width, height in copies:
        copy = _Copy(
            source_type=UNIFIED,
            source=source.address,
            source_pitch=source.pitch,
            destination_type=UNIFIED,
            destination=destination.address,
            destination_pitch=destination.pitch,
            width=width,
            height=height,
        )
        call("cuMemcpy2DAsync_v2", byref(copy), c_void_p(stream))
