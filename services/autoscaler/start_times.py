"""How long a worker takes from the order of its pod to its registration."""

from collections import deque

DEFAULT_S = 60.0
"""until a start was seen"""
NUM_KEPT = 20
SHARE = 0.9
"""of the starts that take no longer than what is told"""


class StartTimes:
    """Fed with pods and workers as they are seen."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=NUM_KEPT)
        self._starting: dict[str, float] = {}
        """age of pods that have no worker yet, by name, as of the last look"""

    def see(self, pod_ages_s: dict[str, float], worker_names: set[str]) -> None:
        """`pod_ages_s`: of all pods there are, by name. A pod that had its worker when it was first
        seen tells nothing."""
        for name in list(self._starting):
            if name in worker_names:
                self._seconds.append(pod_ages_s.get(name, self._starting[name]))
                del self._starting[name]
            elif name not in pod_ages_s:
                del self._starting[name]
        for name, age_s in pod_ages_s.items():
            if name not in worker_names:
                self._starting[name] = age_s

    @property
    def seconds(self) -> float:
        """That SHARE of the latest starts took at most."""
        if not self._seconds:
            return DEFAULT_S
        ordered = sorted(self._seconds)
        return ordered[min(len(ordered) - 1, int(SHARE * len(ordered)))]
