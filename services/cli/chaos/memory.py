"""How the memory of processes grows that no fault hits.

One level for each part of a run, the median of the samples in it; the slope is that of the line
through the levels by least squares, its bound the upper end of the one-sided 95 % interval (Draper
and Smith, Applied Regression Analysis, 1.4). The formula wants levels that do not depend on each
other. They do, as memory does, so the error is widened by sqrt((1 + r) / (1 - r)), with r the
correlation of what is left of one level and of the next (Bartlett 1946, for series of first order).
"""

import asyncio
import math
import re
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import psutil

EVERY_S = 5.0
WARM_SHARE = 1 / 6
"""of a run: caches fill, allocators take what they will keep"""
NUM_PARTS = 20
STUDENT_T = 1.734
"""of one-sided 95 % and NUM_PARTS - 2 degrees of freedom"""
MOST_ALIKE = 0.8
"""values more alike than that say nothing of a slope"""
LEAST_S = 3600.0
"""of a shorter run nothing is demanded"""
MOST_BYTES_PER_H = 5e6


@dataclass(frozen=True)
class Growth:
    """Of one process."""

    name: str
    first_bytes: float
    """at the end of the warm-up"""
    slope_bytes_per_h: float
    bound_bytes_per_h: float
    """the slope is below it, 19 times of 20"""
    seconds: float

    @property
    def too_much(self) -> bool:
        return self.seconds >= LEAST_S and self.bound_bytes_per_h > MOST_BYTES_PER_H


class MemoryLog:
    """Resident bytes of processes, sampled for as long as they live."""

    def __init__(self, processes: dict[str, psutil.Process]) -> None:
        """`processes`: by name."""
        self._processes = processes
        self._samples: dict[str, list[tuple[float, int]]] = {name: [] for name in processes}

    async def keep(self) -> None:
        while True:
            for name, process in self._processes.items():
                with suppress(OSError, psutil.NoSuchProcess):
                    if process.is_running():
                        self._samples[name].append((time.monotonic(), resident_bytes(process.pid)))
            await asyncio.sleep(EVERY_S)

    def unjudged(self) -> list[str]:
        """Names of those that lack samples, where a run was long enough to judge them."""
        found = []
        for name, samples in self._samples.items():
            seconds = samples[-1][0] - samples[0][0] if samples else 0.0
            if seconds >= LEAST_S and growth(name, samples) is None:
                found.append(name)
        return found

    @property
    def gone(self) -> list[str]:
        """Names of those that have ended."""
        return [name for name, process in self._processes.items() if not process.is_running()]

    def growths(self) -> list[Growth]:
        """Of those with a sample in every part of the run."""
        found = (growth(name, samples) for name, samples in self._samples.items())
        return [one for one in found if one is not None]


def growth(name: str, samples: Sequence[tuple[float, float]]) -> Growth | None:
    """`samples`: of (seconds, bytes), in order. None if they are too few."""
    if not samples:
        return None
    begin_s, end_s = samples[0][0], samples[-1][0]
    warm_s = begin_s + WARM_SHARE * (end_s - begin_s)
    part_s = (end_s - warm_s) / NUM_PARTS
    parts: list[list[float]] = [[] for _ in range(NUM_PARTS)]
    for at_s, level in samples:
        if part_s > 0 and at_s >= warm_s:
            parts[min(int((at_s - warm_s) / part_s), NUM_PARTS - 1)].append(level)
    if not all(parts):
        return None
    levels = [statistics.median(part) for part in parts]
    hours = [part_s * (index + 0.5) / 3600 for index in range(NUM_PARTS)]
    slope, offset = statistics.linear_regression(hours, levels)
    rest = [level - offset - slope * hour for hour, level in zip(hours, levels, strict=True)]
    spread = sum((hour - statistics.fmean(hours)) ** 2 for hour in hours)
    error = math.sqrt(sum(one**2 for one in rest) / (NUM_PARTS - 2) / spread) * _widening(rest)
    return Growth(name, levels[0], slope, slope + STUDENT_T * error, end_s - begin_s)


def _widening(rest: Sequence[float]) -> float:
    """Of the error, for values that follow each other."""
    total = sum(one**2 for one in rest)
    if not total:
        return 1.0
    alike = sum(one * other for one, other in pairwise(rest)) / total
    alike = min(max(alike, 0.0), MOST_ALIKE)
    return math.sqrt((1 + alike) / (1 - alike))


def resident_bytes(pid: int) -> int:
    """RSS without pages of the KV pool: an engine takes them all at its start, and which of them
    its io process has mapped at a moment is the hand-overs under way then. OSError: it is gone."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    kib = dict(re.findall(r"^(Rss\w+):\s+(\d+) kB$", status, re.MULTILINE))
    if "RssAnon" not in kib:  # a zombie
        raise ProcessLookupError(pid)
    return (int(kib["RssAnon"]) + int(kib["RssFile"])) * 1024
