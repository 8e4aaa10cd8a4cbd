"""Device memory of one process that the processes of other GPUs of this host can write.

Through the driver's own calls (cuMemAlloc, cuIpcGetMemHandle, cuIpcOpenMemHandle): a handle is 64
bytes that any process of this host may open, so nothing needs to be pickled, and torch's allocator
and its graph pools know nothing of it. No multicast object is ever made.
"""

import ctypes
from ctypes import byref, c_size_t, c_ubyte, c_uint, c_uint64

from kernels.launching.driver import call

HANDLE_BYTES = 64
PAGE_BYTES = 2 * 2**20
"""the driver shares whole pages: an allocation of its own pages shares nothing else"""
LAZY_ENABLE_PEER_ACCESS = 1


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", c_ubyte * HANDLE_BYTES),)


class PeerMemory:
    """Zeroed memory on the current device, and what was opened of other processes'.

    Needs a current context: torch must have used the device in this thread.
    """

    def __init__(self, num_bytes: int) -> None:
        self._opened: list[int] = []
        address, handle = c_uint64(), _Handle()
        whole_bytes = -(-num_bytes // PAGE_BYTES) * PAGE_BYTES
        call("cuMemAlloc_v2", byref(address), c_size_t(whole_bytes))
        self.address = int(address.value)
        """of the first byte, on this process's device"""
        call("cuMemsetD8_v2", address, c_ubyte(0), c_size_t(whole_bytes))
        call("cuCtxSynchronize")
        call("cuIpcGetMemHandle", byref(handle), address)
        self.handle = bytes(handle.reserved)
        """what another process opens it by"""

    def open(self, handle: bytes) -> int:
        """The address at which this process sees the memory of another one on this host."""
        address = c_uint64()
        opened = _Handle.from_buffer_copy(handle)
        flags = c_uint(LAZY_ENABLE_PEER_ACCESS)
        call("cuIpcOpenMemHandle_v2", byref(address), opened, flags)
        self._opened.append(int(address.value))
        return self._opened[-1]

    def close(self) -> None:
        """Give everything back; no kernel may use it any more, here or elsewhere."""
        for address in self._opened:
            call("cuIpcCloseMemHandle", c_uint64(address))
        self._opened.clear()
        if self.address:
            call("cuMemFree_v2", c_uint64(self.address))
            self.address = 0
