"""What `baton up` must know of the machine, found without importing torch."""

import os
import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


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


def _torch_version() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:
        return "0+cpu"
