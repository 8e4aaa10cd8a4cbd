"""How long a worker takes from the order of its pod to its registration."""

from collections import deque
from collections.abc import Mapping, Set

DEFAULT_S = 60.0
"""until a start was seen"""
NUM_KEPT = 20
SHARE = 0.9
"""of the starts that take no longer than what is told"""


class StartTimes:
    """Fed with pods and workers as they are seen."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=NUM_KEPT)
        self._starting: set[str] = set()
        """pods that never had a worker, as far as was seen"""
        self._served: set[str] | None = None
        """pods that had one; None before the first look"""

    def see(self, pod_ages_s: Mapping[str, float], worker_names: Set[str]) -> None:
        """`pod_ages_s`: of all pods there are, by name. A pod that had its worker when it was first
        seen tells nothing, nor does one that is gone, or whose worker comes back. At the first look
        nobody knows which of them starts and which has lost its worker."""
        pods = pod_ages_s.keys()
        known = pods if self._served is None else self._served
        started = self._starting & worker_names & pods
        self._seconds.extend(pod_ages_s[name] for name in sorted(started))
        self._served = (known | worker_names) & pods
        self._starting = pods - self._served

    @property
    def seconds(self) -> float:
        """That SHARE of the latest starts took at most."""
        if not self._seconds:
            return DEFAULT_S
        ordered = sorted(self._seconds)
        return ordered[min(len(ordered) - 1, int(SHARE * len(ordered)))]
