"""What the device reaches when it does one thing only: how fast it copies, and multiplies."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from shared.engine.running.ceilings import Ceilings


@dataclass(frozen=True)
class Effort:
    """How much is done for a measurement."""

    num_rounds: int
    copy_bytes: int
    copies_per_round: int
    matmul_size: int
    matmuls_per_round: int


THOROUGH = {"cuda": Effort(5, 2**31, 1, 8192, 32), "cpu": Effort(5, 2**26, 1, 512, 8)}
"""for a benchmark: long enough for a GPU to come down to the clock it can hold"""
BRIEF = {"cuda": Effort(3, 2**29, 8, 8192, 8), "cpu": Effort(2, 2**24, 1, 512, 1)}
"""at a start: about 60 ms, of a CPU or an H200, and 1.1 GB of that"""


def measure_ceilings(
    device: torch.device, dtype: torch.dtype, effort: dict[str, Effort] = THOROUGH
) -> Ceilings:
    """Medians; random values, since a product of zeros takes less power and time."""
    chosen = effort[device.type]
    ceilings = Ceilings(_copy_rate(device, chosen), _matmul_rate(device, dtype, chosen))
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return ceilings


def _copy_rate(device: torch.device, effort: Effort) -> float:
    """Bytes a second, read and written."""
    source = torch.empty(effort.copy_bytes // 4, device=device).normal_()
    target = torch.empty_like(source)
    number = effort.copies_per_round

    def copy() -> None:
        for _ in range(number):
            target.copy_(source)

    return 2 * effort.copy_bytes * number / _median_s(device, effort.num_rounds, copy)


def _matmul_rate(device: torch.device, dtype: torch.dtype, effort: Effort) -> float:
    """Operations a second of a large square product."""
    size, number = effort.matmul_size, effort.matmuls_per_round
    left, right = (torch.empty(size, size, device=device).normal_().to(dtype) for _ in range(2))
    output = torch.empty_like(left)

    def multiply() -> None:
        for _ in range(number):
            torch.mm(left, right, out=output)

    return 2 * size**3 * number / _median_s(device, effort.num_rounds, multiply)


def _median_s(device: torch.device, num_rounds: int, work: Callable[[], object]) -> float:
    def finish() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    times_s = []
    for _ in range(num_rounds + 1):
        finish()
        start_s = time.perf_counter()
        work()
        finish()
        times_s.append(time.perf_counter() - start_s)
    return statistics.median(times_s[1:])
