"""The latest values of something that comes once per request, and their quantiles."""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from services.gateway.owner.records.quantile import quantile

WINDOW_S = 60.0
MAX_VALUES = 1024
"""kept: at more a minute it is fewer seconds that are seen"""


class Recent:
    """Values with their times, in order of time."""

    def __init__(self) -> None:
        self._values: deque[tuple[float, float]] = deque(maxlen=MAX_VALUES)

    def note(self, now_s: float, value: float) -> None:
        self._values.append((now_s, value))

    def told(self, now_s: float) -> dict[str, Any]:
        """p50 and p99 of the last minute, and of how many values."""
        return quantiles([value for at_s, value in self._values if now_s - at_s <= WINDOW_S])


class RecentStages:
    """The same of each stage of a request's critical path."""

    def __init__(self, stages: Iterable[str]) -> None:
        self._stages = {stage: Recent() for stage in stages}

    def note(self, now_s: float, path_ms: Mapping[str, float]) -> None:
        for stage, values in self._stages.items():
            if stage in path_ms:
                values.note(now_s, path_ms[stage])

    def told(self, now_s: float) -> dict[str, Any]:
        return {stage: values.told(now_s) for stage, values in self._stages.items()}


def quantiles(values: list[float]) -> dict[str, Any]:
    """As JSON has them; null of no values."""
    found = {"p50": quantile(values, 0.5), "p99": quantile(values, 0.99)}
    rounded = {name: None if value is None else round(value, 3) for name, value in found.items()}
    return {**rounded, "count": len(values)}
