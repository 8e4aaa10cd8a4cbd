"""The memory that a worker computes in: of a GPU by its name, or of this machine."""

import importlib
from dataclasses import dataclass
from typing import Any

from services.cli.byte_size import MIB
from services.cli.doctor.gpu import Gpu, gpus_of
from services.cli.doctor.machine import first_gpu
from shared.device_type import device_type
from shared.engine.loading.host_memory import free_memory
from shared.errors import MissingError, SettingsError
from shared.settings.groups import ComputeSettings

GPUS_MIB = {
    "A100-40": 40_339,
    "A100-80": 81_039,
    "H100": 81_082,
    "H200": 143_156,
    "B200": 182_631,
    "L4": 22_478,
    "L40S": 45_486,
    "RTX-4090": 24_207,
}
"""name -> MiB as the driver reports them, which is less than what the card is sold as. Drivers
differ by a few hundred; the least that was seen"""

RATES = {
    "A100-40": (1.555e12, 312e12),
    "A100-80": (2.039e12, 312e12),
    "H100": (3.35e12, 989e12),
    "H200": (4.8e12, 989e12),
    "B200": (8.0e12, 2250e12),
    "L4": (0.3e12, 121e12),
    "L40S": (0.864e12, 362e12),
    "RTX-4090": (1.008e12, 165e12),
}
"""name -> bytes and bfloat16 operations a second, as the maker says; no program reaches either"""
OWN_CONTEXT_BYTES = 400 * MIB
"""of what is in use: the context of whoever asks the driver, at least; 0.5 GiB on an H200"""


@dataclass(frozen=True)
class Device:
    """What a rank of a worker computes in."""

    name: str
    total_bytes: int
    used_bytes: int = 0
    """by others, already now"""
    on_gpu: bool = True

    @property
    def kind(self) -> str:
        return "cuda" if self.on_gpu else "cpu"


def named_gpu(name: str) -> Device:
    """SettingsError, which lists the names, for one that nobody knows."""
    wanted = _plain(name)
    for known, mib in GPUS_MIB.items():
        if wanted in (_plain(known), _plain(known) + "gb"):
            return Device(known, mib * MIB)
    raise SettingsError(
        f"--gpu {name!r} is none of {', '.join(GPUS_MIB)}; give another one's memory with "
        "--gpu-memory 80GiB"
    )


def this_machine(compute: ComputeSettings) -> Device:
    """The GPU of --device that has least free, of those that --tp takes; without GPUs the
    memory of the machine, or of its container, of which each rank has its share. MissingError for
    a GPU that is not here."""
    if device_type(compute.device) == "cuda":
        gpus = _gpus()
        first = first_gpu(compute.device)
        chosen = gpus[first : first + compute.tp]
        if len(chosen) == compute.tp:
            tightest = min(chosen, key=lambda gpu: gpu.free_bytes)
            used = max(0, tightest.total_bytes - tightest.free_bytes - OWN_CONTEXT_BYTES)
            return Device(tightest.name, tightest.total_bytes, used)
        if gpus or compute.device != "auto":
            raise MissingError(
                f"{first + compute.tp} GPUs are asked for and torch sees {len(gpus)} here: name "
                "one with --gpu or --gpu-memory, or lower --tp or --device"
            )
    total, free = free_memory()
    share, used = total // compute.tp, (total - free) // compute.tp
    return Device("this machine's CPU", share, used, on_gpu=False)


def _gpus() -> tuple[Gpu, ...]:
    try:
        torch: Any = importlib.import_module("torch")
        return gpus_of(torch) if torch.cuda.is_available() else ()
    except ModuleNotFoundError:
        raise MissingError(
            "torch, which knows the GPUs here, is not installed: name one with --gpu, or "
            "`make install`"
        ) from None
    except (RuntimeError, ImportError, OSError) as error:
        raise MissingError(
            f"the GPUs here cannot be asked ({' '.join(str(error).split())[:200]}): name one with "
            "--gpu; `baton doctor` says more"
        ) from None


def _plain(name: str) -> str:
    return "".join(char for char in name.lower() if char.isalnum())
