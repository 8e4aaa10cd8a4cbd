"""Process lifetime: a quick start, a child that never outlives its parent, and a name for a run of
a process."""

import ctypes
import gc
import importlib
import os
import secrets
import signal
import sys
from types import ModuleType

PR_SET_PDEATHSIG = 1
"""prctl: the signal this process gets when its parent ends"""
_M_MMAP_THRESHOLD = -3
LARGE_BLOCK_BYTES = 128 * 1024


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends, also on kill -9 of the parent.

    Call early in the child with the parent's pid. On systems other than Linux it does nothing;
    there the closed channel or lifeline is what ends the child.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)


def new_incarnation(worker_id: str) -> str:
    """`worker_id` and a 128-bit boot nonce: never the same for two runs of a process."""
    return f"{worker_id}.{secrets.token_hex(16)}"


def worker_id_of(incarnation: str) -> str:
    return incarnation.rpartition(".")[0]


def import_whole(name: str) -> ModuleType:
    """A module and all that it imports, without collections: they find nothing in what stays, and
    take a tenth of torch's import."""
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        gc.enable()


def freeze_heap() -> None:
    """What start-up made lives as long as the process: collections need not look through it. A
    full one would stop a gateway, with all its streams, for 30 ms."""
    gc.collect()
    gc.freeze()


def thaw_heap() -> None:
    """The opposite, once what start-up made is of no use any more; frees what of it is."""
    gc.unfreeze()
    gc.collect()


def map_large_blocks() -> None:
    """Give large blocks of memory back to the system when they are freed.

    glibc raises the size from which it does so to that of each such block it frees, up to 32 MiB,
    and then keeps the holes: after many bodies of 4 MiB half of them."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)
