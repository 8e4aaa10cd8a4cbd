"""What a figure depends on besides the program."""

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import torch


@dataclass(frozen=True)
class DeviceFacts:
    """A device and what computes on it."""

    name: str
    cache_bytes: int | None
    """L2 cache of a GPU"""
    versions: str

    @classmethod
    def of(cls, device: torch.device) -> "DeviceFacts":
        versions = f"torch {torch.__version__}, triton {_version('triton')}"
        if device.type == "cpu":
            return cls("CPU", None, versions)
        facts = torch.cuda.get_device_properties(device)
        return cls(facts.name, facts.L2_cache_size, versions)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"
