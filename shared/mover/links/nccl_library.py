"""The functions of NCCL that a link calls, as nccl.h declares them.

torch's own process groups watch their communicators in threads that end the process when a peer
dies; a worker has to outlive its peers.
"""

import ctypes
from functools import cache

from shared.mover.copies import CopyError

LIBRARY = "libnccl.so.2"
ID_BYTES = 128
SUCCESS, IN_PROGRESS = 0, 7
INT8 = 0
UNDEFINED = -(2**31)
MAGIC = 0xCAFEBEEF
CONFIG_VERSION = 21800
"""that of NCCL 2.18: later ones take it, and know what it does not say"""


class UniqueId(ctypes.Structure):
    """Of one communicator; passed by value."""

    _fields_ = (("internal", ctypes.c_byte * ID_BYTES),)


class Config(ctypes.Structure):
    """ncclConfig_t."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
        ("cga_cluster_size", ctypes.c_int),
        ("min_ctas", ctypes.c_int),
        ("max_ctas", ctypes.c_int),
        ("net_name", ctypes.c_char_p),
        ("split_share", ctypes.c_int),
    )

    @classmethod
    def non_blocking(cls, max_ctas: int) -> "Config":
        """Calls return at once. `max_ctas`: thread blocks of the GPU that move bytes, at most."""
        size = ctypes.sizeof(cls)
        undefined = UNDEFINED
        return cls(size, MAGIC, CONFIG_VERSION, 0, undefined, undefined, max_ctas, None, undefined)


@cache
def library() -> ctypes.CDLL:
    """The one that torch has loaded. CopyError where it has none."""
    try:
        nccl = ctypes.CDLL(LIBRARY)
    except OSError:
        raise CopyError("this torch brings no NCCL") from None
    pointer, integer, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
    declared = {
        "ncclGetVersion": (ctypes.POINTER(integer),),
        "ncclGetUniqueId": (ctypes.POINTER(UniqueId),),
        "ncclCommInitRankConfig": (
            ctypes.POINTER(pointer),
            integer,
            UniqueId,
            integer,
            ctypes.POINTER(Config),
        ),
        "ncclCommGetAsyncError": (pointer, ctypes.POINTER(integer)),
        "ncclCommAbort": (pointer,),
        "ncclSend": (pointer, size, integer, integer, pointer, pointer),
        "ncclRecv": (pointer, size, integer, integer, pointer, pointer),
    }
    for name, arguments in declared.items():
        function = getattr(nccl, name)
        function.argtypes, function.restype = arguments, integer
    nccl.ncclGetErrorString.argtypes, nccl.ncclGetErrorString.restype = (integer,), ctypes.c_char_p
    nccl.ncclGetLastError.argtypes, nccl.ncclGetLastError.restype = (pointer,), ctypes.c_char_p
    return nccl


def check(status: int, comm: ctypes.c_void_p | None = None) -> int:
    """The status, if it is no error. CopyError with what NCCL says of it."""
    if status in (SUCCESS, IN_PROGRESS):
        return status
    nccl = library()
    said = [nccl.ncclGetErrorString(status), nccl.ncclGetLastError(comm)]
    raise CopyError("NCCL: " + ", ".join(text.decode() for text in said if text))


def version() -> str:
    """2.29.7 is 22907."""
    number = ctypes.c_int()
    check(library().ncclGetVersion(ctypes.byref(number)))
    return f"{number.value // 10000}.{number.value // 100 % 100}.{number.value % 100}"
