"""What `baton up` must know of the machine, found without importing torch."""

import os
import re
from collections.abc import Mapping
from ctypes import byref, c_int, c_uint
from importlib.metadata import PackageNotFoundError, version
from itertools import permutations
from pathlib import Path

from kernels.launching.driver import DriverError, call


def num_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0))


def num_gpus(
    devices: Path = Path("/dev"),
    environ: Mapping[str, str] = os.environ,
    torch_version: str | None = None,
) -> int:
    """CUDA devices the installed torch may use; 0 with a build of torch for the CPU."""
    if (torch_version or _torch_version()).endswith("+cpu"):
        return 0
    num_present = sum(
        bool(re.fullmatch(r"nvidia\d+", path.name)) for path in devices.glob("nvidia*")
    )
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return num_present
    num_visible = len([item for item in visible.split(",") if item.strip() not in ("", "-1")])
    return min(num_visible, num_present)


def gpus_reach(num: int) -> bool:
    """Each of these CUDA devices can copy from the memory of every other; False where the driver
    cannot be asked."""
    try:
        call("cuInit", c_uint(0))
        return all(_reaches(*pair) for pair in permutations(range(num), 2))
    except (OSError, DriverError):
        return False


def _reaches(device: int, other: int) -> bool:
    """Of two ordinals among the visible devices; the driver's handle of a device is its ordinal."""
    can = c_int(0)
    call("cuDeviceCanAccessPeer", byref(can), c_int(device), c_int(other))
    return bool(can.value)


def _torch_version() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:
        return "0+cpu"
