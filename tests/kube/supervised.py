"""A container of a pod: started, probed, started again after a pause that doubles, stopped."""

import signal
import time
from collections.abc import Callable
from typing import Any

from tests.kube.api_server import Object, timestamp
from tests.kube.container import Container
from tests.kube.probes import Probes

FIRST_PAUSE_S, LONGEST_PAUSE_S = 10.0, 300.0
TICK_S = 0.05


class Supervised:
    """`start` makes a new process; it is called at once and after each pause."""

    def __init__(
        self, spec: Object, address: str, start: Callable[[int], Container], restarts: str
    ) -> None:
        """`restarts`: the pod's restartPolicy."""
        self.name: str = spec["name"]
        self.code: int | None = None
        """exit code of the last process, once it has ended"""
        self._spec = spec
        self._address = address
        self._start = start
        self._restarts = restarts
        self._num_restarts = 0
        self._pause_s = FIRST_PAUSE_S
        self._not_before_s = 0.0
        self._begin()

    @property
    def ready(self) -> bool:
        return self.code is None and self._probes.ready

    @property
    def ended(self) -> bool:
        """And not to be started again."""
        if self.code is None:
            return False
        return self._restarts == "Never" or (self._restarts == "OnFailure" and self.code == 0)

    @property
    def first(self) -> int | None:
        """Its process 1, as the machine counts."""
        return self._container.first()

    def tick(self, grace_s: float) -> None:
        """Called every few moments while the pod is to run."""
        if self.code is None and self._container.exit_code() is None and self._probes.dead:
            self.stop(grace_s)
        self._notice_end()
        if self.code is not None and not self.ended and time.monotonic() >= self._not_before_s:
            self._num_restarts += 1
            self._begin()

    def stop(self, grace_s: float) -> None:
        """preStop, SIGTERM, and SIGKILL when the grace is over."""
        deadline_s = time.monotonic() + grace_s
        self._probes.leaving = True
        hook = self._spec.get("lifecycle", {}).get("preStop")
        if hook and self._container.exit_code() is None:
            self._container.run(hook["exec"]["command"], grace_s)
        self._container.signal(signal.SIGTERM)
        while self._container.exit_code() is None and time.monotonic() < deadline_s:
            time.sleep(TICK_S)
        self.kill()

    def crash(self) -> None:
        self._container.kill()

    def kill(self) -> None:
        if self._container.exit_code() is None:
            self._container.kill()
        self._notice_end()
        self._probes.stop()

    def status(self) -> Object:
        running: dict[str, Any] = {"running": {"startedAt": self._started_at}}
        ended = {"terminated": self._ending} if self._ending else {}
        waits = {"waiting": {"reason": "CrashLoopBackOff"}}
        over = ended if self.ended else waits
        return {
            "name": self.name,
            "image": self._spec["image"],
            "imageID": self._spec["image"],
            "ready": self.ready,
            "started": self.code is None and self._probes.started,
            "restartCount": self._num_restarts,
            "state": running if self.code is None else over,
            "lastState": ended,
        }

    def _begin(self) -> None:
        self._container = self._start(self._num_restarts)
        self._probes = Probes(self._container, self._address, self._spec)
        self._started_at = timestamp()
        self.code = None
        self._ending: dict[str, Any] = {}

    def _notice_end(self) -> None:
        code = self._container.exit_code()
        if code is None or self.code is not None:
            return
        self._probes.stop()
        self.code = code
        self._ending = {"exitCode": code, "startedAt": self._started_at, "finishedAt": timestamp()}
        if self._num_restarts > 0:
            self._not_before_s = time.monotonic() + self._pause_s
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
