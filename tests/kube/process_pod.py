"""One pod, in a thread of its own: volumes, init containers, containers, status, end."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.kube.api_server import ApiServer, Cluster, Object, timestamp
from tests.kube.container import HASTY, HASTY_IMAGE, Container, Identity, Mount, Start
from tests.kube.environment import command_of, environment_of
from tests.kube.supervised import Supervised
from tests.kube.volumes import ACCOUNT, Volumes
from tests.rules.sources import ROOT

TICK_S = 0.1
WAIT_S = 0.5
"""between two looks for what a pod needs and is not there"""
NEXT_TAG = "next"
"""of images of the release after this one"""


@dataclass(frozen=True)
class Machine:
    """What pods run on."""

    server: ApiServer
    cluster: Cluster
    folder: Path
    hosts: Path
    """the file of names that every container reads"""
    next_release: Path
    """a checkout of it"""
    run: Callable[[Start], Container] = Container


class ProcessPod:
    """Runs from `start` until the pod is deleted, or `cut` says that its node is no more."""

    def __init__(self, machine: Machine, pod: Object, address: str) -> None:
        self.address = address
        self._machine = machine
        self._pod = pod
        self.name: str = pod["metadata"]["name"]
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods"
        self._path = f"{path}/{self.name}"
        self._folder = machine.folder / f"{self.name}-{pod['metadata']['uid'][:8]}"
        self._stopping = threading.Event()
        self._grace_s = 0.0
        self._is_cut = False
        self._running: list[Supervised] = []
        self._init: list[Supervised] = []
        self._told: Object = {}
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, grace_s: float) -> None:
        """It was deleted; harmless when called again."""
        self._grace_s = grace_s
        self._stopping.set()

    def cut(self) -> None:
        """All of it is killed at once, and nobody is told."""
        self._is_cut = True
        self._stopping.set()
        for each in [*self._init, *self._running]:
            each.kill()

    def join(self) -> None:
        """Until nothing of it runs."""
        self._thread.join()

    def crash(self) -> None:
        """Its processes are killed, and started again as after any end."""
        for each in self._running:
            each.crash()

    def processes(self) -> dict[str, int]:
        """Process 1 of each container that runs, by the container's name."""
        found = {each.name: each.first for each in self._running}
        return {name: pid for name, pid in found.items() if pid is not None}

    def logs(self) -> str:
        """Of all its containers, one after another."""
        files = sorted(self._folder.glob("containers/*/log"))
        return "\n".join(f"{f.parent.name}: {f.read_text(errors='replace')}" for f in files)

    def _run(self) -> None:
        self._folder.mkdir(parents=True)
        mounts = self._volumes()
        if self._init_containers(mounts):
            specs = self._pod["spec"]["containers"]
            self._running = [self._supervised(spec, mounts) for spec in specs]
            while not self._stopping.wait(TICK_S):
                for each in self._running:
                    each.tick(self._pod["spec"]["terminationGracePeriodSeconds"])
                self._tell()
        if self._is_cut:
            for each in [*self._init, *self._running]:
                each.kill()  # also what started while the node went
        else:
            self._end()

    def _volumes(self) -> dict[str, Path]:
        volumes = Volumes(
            self._machine.server, self._machine.cluster, self._pod, self._folder / "volumes"
        )
        while not self._stopping.is_set():
            try:
                return volumes.make()
            except httpx.HTTPStatusError:
                self._stopping.wait(WAIT_S)
        return {}

    def _init_containers(self, mounts: dict[str, Path]) -> bool:
        """One after another; whether all succeeded."""
        for spec in self._pod["spec"].get("initContainers", []):
            each = self._supervised(spec, mounts, restarts="OnFailure")
            self._init.append(each)
            while not each.ended:
                if self._stopping.wait(TICK_S):
                    return False
                each.tick(self._pod["spec"]["terminationGracePeriodSeconds"])
                self._tell()
        return not self._stopping.is_set()

    def _supervised(self, spec: Object, volumes: dict[str, Path], restarts: str = "") -> Supervised:
        mounts = [
            Mount(
                volumes[mount["name"]] / mount.get("subPath", ""),
                mount["mountPath"],
                mount.get("readOnly", False),
            )
            for mount in spec.get("volumeMounts", [])
            if mount["name"] in volumes
        ]
        mounts.append(Mount(self._machine.hosts, "/etc/hosts", read_only=True))
        if ACCOUNT in volumes:
            mounts.append(Mount(volumes[ACCOUNT], ACCOUNT, read_only=True))

        def begin(number: int) -> Container:
            place = self._folder / "containers" / f"{spec['name']}-{number}"
            place.mkdir(parents=True)
            pod = {**self._pod, "status": {"podIP": self.address, "hostIP": self.address}}
            environ = environment_of(self._machine.server, self._machine.cluster, pod, spec)
            if HASTY in spec["image"]:
                environ = {**HASTY_IMAGE, **environ}
            command = command_of(spec, environ)
            is_next = spec["image"].endswith(f":{NEXT_TAG}")
            code = self._machine.next_release if is_next else ROOT
            start = Start(place, spec, command, environ, mounts, self._identity(), code)
            return self._machine.run(start)

        return Supervised(spec, self.address, begin, restarts or self._pod["spec"]["restartPolicy"])

    def _identity(self) -> Identity:
        security = self._pod["spec"].get("securityContext", {})
        user, group = security.get("runAsUser", 0), security.get("runAsGroup", 0)
        return Identity(user, group, security.get("fsGroup", group))

    def _end(self) -> None:
        threads = [
            threading.Thread(target=each.stop, args=(self._grace_s,)) for each in self._running
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            threads[0].join(TICK_S)
            self._tell()
        for each in self._init:
            each.kill()
        try:
            self._tell()
            self._machine.cluster.delete(f"{self._path}?gracePeriodSeconds=0")
        except httpx.HTTPError:
            pass  # somebody deleted it by force

    def _tell(self) -> None:
        status = self._status()
        if status == self._told or self._is_cut:
            return
        try:
            self._machine.cluster.write_status(self._path, {"status": status})
            self._told = status
        except httpx.HTTPError:
            return  # deleted by force, or told at the next turn

    def _status(self) -> Object:
        initialized = all(each.ended for each in self._init)
        is_ready = bool(self._running) and all(each.ready for each in self._running)
        conditions = {
            "Initialized": initialized,
            "Ready": is_ready,
            "ContainersReady": is_ready,
            "PodScheduled": True,
        }
        status: dict[str, Any] = {
            "phase": self._phase(),
            "podIP": self.address,
            "podIPs": [{"ip": self.address}],
            "conditions": [self._condition(kind, value) for kind, value in conditions.items()],
            "containerStatuses": [each.status() for each in self._running],
            "initContainerStatuses": [each.status() for each in self._init],
        }
        return {**status, "startTime": self._told.get("startTime", timestamp())}

    def _condition(self, kind: str, is_true: bool) -> Object:
        value = "True" if is_true else "False"
        for told in self._told.get("conditions", []):
            if (told["type"], told["status"]) == (kind, value):
                known: Object = told
                return known
        return {"type": kind, "status": value, "lastTransitionTime": timestamp()}

    def _phase(self) -> str:
        if not self._running:
            return "Pending"
        if not all(each.ended for each in self._running):
            return "Running"
        return "Failed" if any(each.code for each in self._running) else "Succeeded"
