"""How much of this machine's CPU other programs left to a test and what it runs."""

import resource
import time
from collections.abc import Iterable

import psutil

LEAST = 0.1


class CpuShare:
    """From its making on. `processes`: those of the test that outlive the measurement."""

    def __init__(self, processes: Iterable[psutil.Process] = ()) -> None:
        self._processes = list(processes)
        self._begin_s, self._all_s, self._own_s = time.monotonic(), _all_s(), self._computed_s()

    def left(self) -> float:
        """1 where nobody else computed, and never less than LEAST."""
        others_s = (_all_s() - self._all_s) - (self._computed_s() - self._own_s)
        machine_s = (time.monotonic() - self._begin_s) * len(psutil.cpu_times(percpu=True))
        return min(max(1 - others_s / machine_s, LEAST), 1.0)

    def _computed_s(self) -> float:
        """By this process, what it started and has ended, and those that were named."""
        usages = [
            resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        ]
        times = [process.cpu_times() for process in self._processes]
        own_s = sum(usage.ru_utime + usage.ru_stime for usage in usages)
        return own_s + sum(time_.user + time_.system for time_ in times)


def _all_s() -> float:
    """CPU seconds that this machine has worked."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)
