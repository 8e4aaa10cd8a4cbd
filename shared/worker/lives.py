"""When a worker whose engine has ended goes on in its process, as a new incarnation.

An engine that was killed, or died of what it computed, is wanted back at once. Whoever started
this process, `baton up` or a kubelet, would hold it back longer each time, and has to when it
cannot serve: an engine that does not start, that hangs, or that ends soon after its start again
and again, takes the process with it.
"""

from shared.worker.engine_client import ExitCause

STEADY_S = 5.0
"""an engine that served so long is no sign that the next one will not"""
MAX_SHORT_LIVES = 10
"""in a row; one request ends four engines at most"""


class Lives:
    """Of one process."""

    def __init__(self) -> None:
        self._num_short = 0
        self._serves_since_s = 0.0

    def begin(self, now_s: float) -> None:
        """An engine serves from now on."""
        self._serves_since_s = now_s

    def goes_on(self, cause: ExitCause, now_s: float) -> bool:
        """Whether there is a next life, now that an engine that served has ended."""
        steady = now_s - self._serves_since_s >= STEADY_S
        self._num_short = 0 if steady else self._num_short + 1
        return cause != "unknown" and self._num_short < MAX_SHORT_LIVES
