"""The release without a cluster: its three command lines as processes of this machine, asked what
a kubelet and `helm test` would ask; workers in pods of their own, and colocated."""

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.chart.process_rules import processes
from tests.chart.release import Object, Release, render
from tests.support.redis_server import RedisServers

HOST = "127.0.0.1"
LISTENING_PORTS = (20000, 32768)
READY_LIMIT_S = 60.0
SECRET = "salt-nobody-sees"  # noqa: S105 a made-up one, searched for below


def free_ports(count: int) -> list[int]:
    """Below those that the kernel gives to connections: until a pod listens there, another test
    would get one of them."""
    ports: list[int] = []
    with contextlib.ExitStack() as listeners:
        while len(ports) < count:
            port = random.randrange(*LISTENING_PORTS)  # noqa: S311
            with contextlib.suppress(OSError):
                listeners.enter_context(socket.create_server((HOST, port)))
                ports.append(port)
    return ports


def release_on(ports: list[int], *, colocated: bool) -> Release:
    """A release whose pods would share this machine's loopback interface."""
    http, admin, *workers = ports
    names = ("workerPort", "probePort", "transferPort")
    roles: dict[str, Any] = {
        role: {"settings": dict(zip(names, workers[start : start + 3], strict=True))}
        for role, start in (("prefill", 0), ("decode", 3))
    }
    settings = {"host": HOST, "port": http, "adminPort": admin, "drainS": 1, "kvMemoryMib": 32}
    service = {"service": {"port": http}}
    existing = {name: {"existingSecret": "s"} for name in ("redis", "cellSecret", "kvSecret")}
    more = {"colocated": {"enabled": colocated}, "doctor": {"job": {"enabled": True, "waitS": 5}}}
    return render({"settings": settings, "gateway": service, **roles, **existing, **more})


def environment_of(container: Object, folder: Path) -> dict[str, str]:
    """With the mounts' folders in it."""
    return {
        item["name"]: item["value"]
        .replace("/etc/baton", str(folder))
        .replace("/cache", str(folder))
        for item in container["env"]
        if "value" in item
    }


class Pod:
    """One container as a process; its mounts are folders under `folder`, shared by all, and `run`,
    whose path is short enough for sockets."""

    def __init__(self, role: str, container: Object, folder: Path, run: str, name: str) -> None:
        self.container = container
        self.run = Path(run)
        known = {"$(POD_IP)": HOST, "$(POD_NAME)": name, "/run/baton": run}
        args = container["args"]
        for reference, text in known.items():
            args = [arg.replace(reference, text) for arg in args]
        environment = environment_of(container, folder)
        self.log = folder / f"{role}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(  # noqa: S603 the chart's own command
                [sys.executable, "-m", "services.cli", *args],
                env={**os.environ, **environment},
                stdout=log,
                stderr=log,
            )

    def status(self, probe: str) -> int:
        """What the kubelet would be told; 0 when nothing listens."""
        asked = self.container[probe]["httpGet"]
        return self.answer(asked["port"], asked["path"])

    def answer(self, port_name: str, path: str) -> int:
        """The status of a GET; 0 when nothing listens."""
        ports = {port["name"]: port["containerPort"] for port in self.container["ports"]}
        try:
            with urllib.request.urlopen(
                f"http://{HOST}:{ports[port_name]}{path}", timeout=5
            ) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0


@pytest.fixture
def cell(
    tmp_path: Path, redis_url: str, request: pytest.FixtureRequest
) -> Iterator[tuple[Release, dict[str, Pod]]]:
    """`request.param`: whether prefill and decode are colocated."""
    run = tempfile.mkdtemp(prefix="run")
    Path(run).chmod(0o2777)  # as an emptyDir with fsGroup
    files = {"redis/url": redis_url, "kv/kv-secret": SECRET, "cell/cell-secret": f"cell-{SECRET}"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    release = release_on(free_ports(8), colocated=request.param)
    pods: dict[str, Pod] = {}
    try:
        for role, _, container in processes(release):
            name = "pod-0" if request.param else f"{role}-0"
            pods[role] = Pod(role, container, tmp_path, run, name)
        yield release, pods
    finally:
        for pod in pods.values():
            pod.process.kill()
            pod.process.wait()
        shutil.rmtree(tmp_path, ignore_errors=True)
        shutil.rmtree(run, ignore_errors=True)


@pytest.fixture
def redis_url() -> Iterator[str]:
    servers = RedisServers()
    yield servers.url()
    servers.close()


@pytest.mark.parametrize("cell", [False, True], ids=["apart", "colocated"], indirect=True)
def test_the_command_lines_serve_a_completion_and_drain(
    cell: tuple[Release, dict[str, Pod]], redis_url: str, tmp_path: Path
) -> None:
    release, pods = cell
    wait_until_ready(pods)
    for pod in pods.values():
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert pod.status(probe) == 200
        shown = str(psutil.Process(pod.process.pid).environ()) + str(pod.process.args)
        assert SECRET not in shown
        assert redis_url not in shown
    (test,) = dict(release.pods())["test"]["spec"]["containers"]
    script, url, prompt, timeout, key_file, _ = test["args"]
    url = url.replace("rel-baton-gateway", HOST)
    answered = subprocess.run(  # noqa: S603 the chart's own command
        [sys.executable, "-c", script, url, prompt, timeout, key_file, url],
        check=True,
        capture_output=True,
    )
    assert answered.stdout.startswith(b"demo: ")
    for path in ("/metrics", "/v1/baton/status"):
        statuses = [pods["gateway"].answer(port, path) for port in ("http", "admin")]
        assert statuses == [404, 200]
    ids = {"worker prefill-0", "worker decode-0"}
    if "colocated" in dict(release.pods()):
        ids = {"worker pod-0-prefill", "worker pod-0-decode"}
        (pair,) = status_of(pods["gateway"])["hand_overs"]
        told = [pair[key] for key in ("prefill", "decode", "transport")]
        assert told == ["pod-0-prefill", "pod-0-decode", "mapped"]
        assert list((pods["decode"].run / "kv").glob("*.sock"))
    found = doctor_s_findings(release, pods["gateway"], tmp_path)
    assert {each["check"] for each in found if each["level"] == "ok"} >= {"gateway", *ids}
    assert [each for each in found if each["level"] == "FAIL"] == []
    for pod in pods.values():
        pod.process.send_signal(signal.SIGTERM)
    (grace_s,) = {
        pod["spec"]["terminationGracePeriodSeconds"]
        for role, pod, _ in processes(release)
        if role == "decode"
    }
    assert [pod.process.wait(grace_s) for pod in pods.values()] == [0, 0, 0]


def doctor_s_findings(release: Release, gateway: Pod, folder: Path) -> list[dict[str, str]]:
    """What the Job after an install finds."""
    (container,) = dict(release.pods())["doctor"]["spec"]["containers"]
    url = f"http://rel-baton-gateway-admin:{admin_port(gateway)}"
    args = [
        arg.replace(url, url.replace("rel-baton-gateway-admin", HOST)) for arg in container["args"]
    ]
    assert args != container["args"]
    done = subprocess.run(  # noqa: S603 the chart's own command
        [sys.executable, "-m", "services.cli", *args, "--json=-"],
        env={**os.environ, **environment_of(container, folder), "XDG_RUNTIME_DIR": str(folder)},
        capture_output=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def admin_port(gateway: Pod) -> int:
    (port,) = [p["containerPort"] for p in gateway.container["ports"] if p["name"] == "admin"]
    number: int = port
    return number


def status_of(gateway: Pod) -> dict[str, Any]:
    port = admin_port(gateway)
    with urllib.request.urlopen(f"http://{HOST}:{port}/v1/baton/status", timeout=5) as answer:
        status: dict[str, Any] = json.load(answer)
    return status


def wait_until_ready(pods: dict[str, Pod]) -> None:
    deadline_s = time.monotonic() + READY_LIMIT_S
    while any(pod.status("readinessProbe") != 200 for pod in pods.values()):
        assert time.monotonic() < deadline_s, "not ready"
        for pod in pods.values():
            assert pod.process.poll() is None, pod.log.read_text(errors="replace")
        time.sleep(0.05)


def test_the_test_of_helm_runs_as_the_gateway_does() -> None:
    """Under an account of the user's own where there is one: then the chart makes none."""
    release = render({"gateway": {"serviceAccountName": "mine"}})
    (pod,) = (item for item in release.of_kind("Pod") if "test" in item["metadata"]["name"])
    assert pod["spec"]["serviceAccountName"] == "mine"
