"""What the device reaches when it does one thing only, measured in the run itself."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import torch

from services.cli.bench.engine.figures.floors import Ceilings

NUM_ROUNDS = 5
COPY_BYTES = {"cuda": 2**31, "cpu": 2**26}
MATMUL_SIZE = {"cuda": 8192, "cpu": 512}
MATMULS_PER_ROUND = {"cuda": 32, "cpu": 8}
"""long enough for a GPU to come down to the clock it can hold"""


@dataclass(frozen=True)
class DeviceFacts:
    """What a figure depends on besides the program."""

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


def measure_ceilings(device: torch.device, dtype: torch.dtype) -> Ceilings:
    """Medians; random values, since a product of zeros takes less power and time."""
    ceilings = Ceilings(_copy_rate(device), _matmul_rate(device, dtype))
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return ceilings


def _copy_rate(device: torch.device) -> float:
    """Bytes a second, read and written."""
    source = torch.empty(COPY_BYTES[device.type] // 4, device=device).normal_()
    target = torch.empty_like(source)
    return 2 * COPY_BYTES[device.type] / _median_s(device, lambda: target.copy_(source))


def _matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Operations a second of a large square product."""
    size = MATMUL_SIZE[device.type]
    left, right = (torch.empty(size, size, device=device).normal_().to(dtype) for _ in range(2))
    output = torch.empty_like(left)
    num_products = MATMULS_PER_ROUND[device.type]

    def multiply() -> None:
        for _ in range(num_products):
            torch.mm(left, right, out=output)

    return 2 * size**3 * num_products / _median_s(device, multiply)


def _median_s(device: torch.device, work: Callable[[], object]) -> float:
    def finish() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    times_s = []
    for _ in range(NUM_ROUNDS + 1):
        finish()
        start_s = time.perf_counter()
        work()
        finish()
        times_s.append(time.perf_counter() - start_s)
    return statistics.median(times_s[1:])


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"
