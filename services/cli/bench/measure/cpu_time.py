"""CPU that another process used, and cores for it alone; Linux."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

MAX_WAIT_SHARE = 0.05
"""of the time, by a gateway for a core: more makes its latencies the machine's"""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class CpuTime:
    """Of all threads of a process since its start."""

    total_s: float
    """exact: the scheduler's own count"""
    system_s: float
    """in steps of a clock tick"""
    waited_s: float = 0.0
    """ready to run, but no core was free: others had it, or a quota was used up"""

    def __sub__(self, earlier: "CpuTime") -> "CpuTime":
        return CpuTime(
            self.total_s - earlier.total_s,
            self.system_s - earlier.system_s,
            self.waited_s - earlier.waited_s,
        )


def cpu_time(pid: int) -> CpuTime:
    folder = Path(f"/proc/{pid}")
    total_ns = waited_ns = 0
    for thread in (folder / "task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it has just ended
            ran, waited, _ = (thread / "schedstat").read_text().split()
            total_ns, waited_ns = total_ns + int(ran), waited_ns + int(waited)
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    return CpuTime(total_ns / 1e9, int(fields[12]) / _TICKS_PER_S, waited_ns / 1e9)


def stolen_s() -> float:
    """Seconds of all cores that the machine under this virtual one gave to others."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return int(fields[8]) / _TICKS_PER_S


@contextlib.contextmanager
def apart(pid: int, others: Sequence[int]) -> Iterator[bool]:
    """One core for `pid` and another for the rest, so that the load does not slow down what it
    measures. Yields whether there were two."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        yield False
        return
    os.sched_setaffinity(pid, {cores[0]})
    for other in others:
        os.sched_setaffinity(other, {cores[1]})
    try:
        yield True
    finally:
        for one in (pid, *others):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(one, cores)
