"""The device an engine runs on, and the threads it computes with there."""

import contextlib
import logging
import os
import platform
from pathlib import Path

import torch

from shared.errors import MissingError, SettingsError

logger = logging.getLogger(__name__)

CPU_FACTS = Path("/proc/cpuinfo")


def resolve_device(wanted: str, rank: int = 0) -> torch.device:
    """auto: the first CUDA device if there is one, else the CPU. Rank r takes device N + r.

    SettingsError if `wanted` is no device, MissingError if torch does not see it."""
    if wanted == "auto":
        wanted = "cuda:0" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise SettingsError(f"--device {wanted!r} is not auto, cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise SettingsError(f"--device {wanted!r} is not auto, cpu, cuda or cuda:N")
    if device.type == "cuda":
        number = (device.index or 0) + rank
        if number >= torch.cuda.device_count():
            ranks = f" and --tp {rank + 1}" if rank else ""
            build = "" if torch.version.cuda else "; this torch is a build for CPUs"
            raise MissingError(
                f"--device {wanted}{ranks}: torch sees {torch.cuda.device_count()} GPUs{build}"
            )
        return torch.device("cuda", number)
    return device


def device_name(device: torch.device) -> str:
    """What tells it from devices that take other times for the same."""
    if device.type == "cuda":
        facts = torch.cuda.get_device_properties(device)
        size = f"{facts.multi_processor_count} multiprocessors, {facts.total_memory} bytes"
        return f"{facts.name}, {size}, CUDA {torch.version.cuda}"
    return f"{_cpu_name()}, {len(os.sched_getaffinity(0))} cores"


def _cpu_name() -> str:
    """As Linux has it, else as Python has."""
    with contextlib.suppress(OSError):
        for line in CPU_FACTS.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def set_threads(threads: int, device: torch.device) -> None:
    """Torch's intra-op threads; more than one splits sums by size, hence by batch."""
    torch.set_num_threads(threads)
    if threads > 1 and device.type == "cpu":
        logger.warning(
            "%d torch threads: an answer's last bits may depend on what shares its batch; "
            "--threads 1 keeps them exact",
            threads,
        )
