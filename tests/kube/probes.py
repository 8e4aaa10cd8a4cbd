"""Startup, readiness and liveness of one container, asked as a kubelet asks them."""

import http.client
import socket
import threading
import time
from typing import Any

from tests.kube.api_server import Object
from tests.kube.container import Container

TICK_S = 0.05


class Probe:
    """One question, and what its answers in a row mean."""

    def __init__(self, container: Container, address: str, spec: Object, probe: Object) -> None:
        self.period_s = float(probe.get("periodSeconds", 10))
        self.delay_s = float(probe.get("initialDelaySeconds", 0))
        self.succeeded = False
        """its last verdict: false until it has been given"""
        self.failed = False
        self._container = container
        self._address = address
        self._probe = probe
        self._ports = {port.get("name"): port["containerPort"] for port in spec.get("ports", [])}
        self._timeout_s = float(probe.get("timeoutSeconds", 1))
        self._run = 0
        """answers of one kind in a row: positive or negative"""

    def ask(self) -> None:
        fine = self._answer()
        self._run = max(self._run, 0) + 1 if fine else min(self._run, 0) - 1
        if self._run >= self._probe.get("successThreshold", 1):
            self.succeeded, self.failed = True, False
        if -self._run >= self._probe.get("failureThreshold", 3):
            self.succeeded, self.failed = False, True

    def _answer(self) -> bool:
        if "exec" in self._probe:
            return self._container.run(self._probe["exec"]["command"], self._timeout_s)
        if "tcpSocket" in self._probe:
            return self._connects(self._port(self._probe["tcpSocket"]["port"]))
        asked = self._probe["httpGet"]
        return self._gets(self._port(asked["port"]), asked["path"])

    def _port(self, named: Any) -> int:
        return named if isinstance(named, int) else int(self._ports[named])

    def _connects(self, port: int) -> bool:
        try:
            socket.create_connection((self._address, port), self._timeout_s).close()
        except OSError:
            return False
        return True

    def _gets(self, port: int, path: str) -> bool:
        connection = http.client.HTTPConnection(self._address, port, timeout=self._timeout_s)
        try:
            connection.request("GET", path, headers={"user-agent": "kube-probe/1.20"})
            return 200 <= connection.getresponse().status < 400
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


class Probes:
    """Asks in a thread until `stop`. A container without a probe is started, ready and alive."""

    def __init__(self, container: Container, address: str, spec: Object) -> None:
        def of(name: str) -> Probe | None:
            probe = spec.get(f"{name}Probe")
            return Probe(container, address, spec, probe) if probe else None

        self._startup, self._readiness, self._liveness = map(
            of, ("startup", "readiness", "liveness")
        )
        self._stopping = threading.Event()
        self.leaving = False
        """set once the pod is to end: it is asked for readiness alone"""
        threading.Thread(target=self._ask, daemon=True).start()

    def stop(self) -> None:
        self._stopping.set()

    @property
    def started(self) -> bool:
        return self._startup is None or self._startup.succeeded

    @property
    def ready(self) -> bool:
        return self.started and (self._readiness is None or self._readiness.succeeded)

    @property
    def dead(self) -> bool:
        """To be killed and started again."""
        return any(probe is not None and probe.failed for probe in (self._startup, self._liveness))

    def _ask(self) -> None:
        if self._startup is not None:
            self._ask_until(self._startup, lambda: self.started)
        asked = [probe for probe in (self._readiness, self._liveness) if probe is not None]
        due_s = {id(probe): time.monotonic() + probe.delay_s for probe in asked}
        while not self._stopping.wait(TICK_S):
            for probe in asked:
                if time.monotonic() < due_s[id(probe)]:
                    continue
                due_s[id(probe)] = time.monotonic() + probe.period_s
                if not (self.leaving and probe is self._liveness):
                    probe.ask()

    def _ask_until(self, probe: Probe, is_over: Any) -> None:
        self._stopping.wait(probe.delay_s)
        while not self._stopping.is_set():
            probe.ask()
            if is_over() or self.dead:
                return
            self._stopping.wait(probe.period_s)
