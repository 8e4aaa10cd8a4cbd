"""GPU memory that other processes of this host map by a file descriptor.

Virtual memory of the driver (cuMemCreate, cuMemMap), not of torch's allocator: an export of torch's
would show whole segments with other tensors in them. Memory lives as long as anybody maps it or
holds a descriptor of it, also after its owner was killed. No multicast object is ever made.
"""

import ctypes
import math
import os
from ctypes import (
    byref,
    c_int,
    c_size_t,
    c_ubyte,
    c_uint64,
    c_ulonglong,
    c_ushort,
    c_void_p,
)
from typing import Any

import torch

from kernels.launching.driver import DriverError, Location, call

PINNED = 1
ON_DEVICE = 1
AS_DESCRIPTOR = 1
RECOMMENDED = 1
READ, READ_WRITE = 1, 3
RDMA_ATTRIBUTE = 110
"""CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED"""


class _AllocationFlags(ctypes.Structure):
    _fields_ = (
        ("compression", c_ubyte),
        ("rdma_capable", c_ubyte),
        ("usage", c_ushort),
        ("reserved", c_ubyte * 4),
    )


class _AllocationProperties(ctypes.Structure):
    _fields_ = (
        ("type", c_int),
        ("handle_types", c_int),
        ("location", Location),
        ("win32_metadata", c_void_p),
        ("flags", _AllocationFlags),
    )


class _Access(ctypes.Structure):
    _fields_ = (("location", Location), ("flags", c_int))


class _Range:
    """Addresses of the current device behind which there is memory."""

    def __init__(self, handle: c_uint64, num_bytes: int, access: int) -> None:
        """Takes the handle over; `num_bytes` is a multiple of the granularity."""
        self.num_bytes = num_bytes
        address = c_uint64()
        try:
            call(
                "cuMemAddressReserve",
                byref(address),
                c_size_t(num_bytes),
                c_size_t(0),
                c_uint64(0),
                c_ulonglong(0),
            )
            self.address = int(address.value)
            try:
                self._map(handle, access)
            except DriverError:
                call("cuMemAddressFree", address, c_size_t(num_bytes))
                raise
        finally:
            call("cuMemRelease", handle)  # the mapping keeps the memory

    def unmap(self) -> None:
        call("cuMemUnmap", c_uint64(self.address), c_size_t(self.num_bytes))
        call("cuMemAddressFree", c_uint64(self.address), c_size_t(self.num_bytes))

    def _map(self, handle: c_uint64, access: int) -> None:
        address, num_bytes = c_uint64(self.address), c_size_t(self.num_bytes)
        call("cuMemMap", address, num_bytes, c_size_t(0), handle, c_ulonglong(0))
        wanted = _Access(_here(), access)
        try:
            call("cuMemSetAccess", address, num_bytes, byref(wanted), c_size_t(1))
        except DriverError:
            call("cuMemUnmap", address, num_bytes)
            raise


class SharedMemory:
    """Zeroed memory on the current device."""

    def __init__(self, num_bytes: int) -> None:
        """DriverError if the device has not as much."""
        properties = _properties()
        self.num_bytes = _whole(num_bytes, properties)
        handle, exported = c_uint64(), c_int(-1)
        size, no_flags = c_size_t(self.num_bytes), c_ulonglong(0)
        call("cuMemCreate", byref(handle), size, byref(properties), no_flags)
        try:
            kind = c_int(AS_DESCRIPTOR)
            call("cuMemExportToShareableHandle", byref(exported), handle, kind, no_flags)
        except DriverError:
            call("cuMemRelease", handle)
            raise
        self._descriptor = int(exported.value)
        self._range = _Range(handle, self.num_bytes, READ_WRITE)
        self.address = self._range.address
        """of the first byte, in this process"""
        call("cuMemsetD8_v2", c_uint64(self.address), c_ubyte(0), size)
        call("cuCtxSynchronize")

    def descriptor(self) -> int:
        """A new descriptor that others map it by; the caller closes it."""
        return os.dup(self._descriptor)

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A view from the first byte on, which keeps the memory. ValueError if it does not fit."""
        num_bytes = math.prod(shape) * dtype.itemsize
        if num_bytes > self.num_bytes:
            raise ValueError(f"{shape} of {dtype} takes {num_bytes} of {self.num_bytes} bytes")
        flat = torch.as_tensor(_Bytes(self, num_bytes), device="cuda")
        return flat.view(dtype).view(shape)

    def close(self) -> None:
        """No kernel and no tensor of this process may use it any more. Safe to call twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            self._range.unmap()


class MappedMemory:
    """Another process's SharedMemory, read-only, as the current device sees it."""

    def __init__(self, descriptor: int, num_bytes: int) -> None:
        """The descriptor stays the caller's. DriverError if it is not memory of a GPU, or less
        than `num_bytes`."""
        whole_bytes = _whole(num_bytes, _properties())
        handle = c_uint64()
        call(
            "cuMemImportFromShareableHandle",
            byref(handle),
            c_void_p(descriptor),
            c_int(AS_DESCRIPTOR),
        )
        self._range: _Range | None = _Range(handle, whole_bytes, READ)
        self.address = self._range.address

    def close(self) -> None:
        """No copy may read it any more. Safe to call twice."""
        if self._range is not None:
            self._range.unmap()
            self._range = None


class _Bytes:
    """What torch makes a tensor of; the tensor keeps it, and it keeps the memory."""

    def __init__(self, memory: SharedMemory, num_bytes: int) -> None:
        self._memory = memory
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (memory.address, False),
            "version": 3,
        }


def _here() -> Location:
    return Location(ON_DEVICE, torch.cuda.current_device())


def _properties() -> _AllocationProperties:
    torch.cuda.set_device(torch.cuda.current_device())  # a context, in this thread too
    capable = c_int()
    device = c_int(torch.cuda.current_device())
    call("cuDeviceGetAttribute", byref(capable), c_int(RDMA_ATTRIBUTE), device)
    flags = _AllocationFlags(rdma_capable=int(bool(capable.value)))
    return _AllocationProperties(PINNED, AS_DESCRIPTOR, _here(), None, flags)


def _whole(num_bytes: int, properties: _AllocationProperties) -> int:
    """At least as much, a multiple of what the driver maps at once."""
    granularity = c_size_t()
    call(
        "cuMemGetAllocationGranularity",
        byref(granularity),
        byref(properties),
        c_int(RECOMMENDED),
    )
    step = int(granularity.value)
    return -(-num_bytes // step) * step
