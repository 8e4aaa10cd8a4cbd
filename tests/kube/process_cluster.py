"""A cluster on this machine: the real API server, controllers and scheduler, and pods as processes.

`in_namespaces.sh` runs the tests where all this is possible.
"""

import compileall
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import helm_python
import httpx
import yaml

from tests.chart.release import CHART, NAME
from tests.kube.api_server import ApiServer, Cluster, Object, running_api_server
from tests.kube.control_plane import running_control_plane
from tests.kube.process_kubelet import ProcessKubelet
from tests.kube.process_pod import Machine
from tests.support.next_release import build_next_release

NAMESPACE = "llm"
VALUES = yaml.safe_load((Path(__file__).parent / "bed_values.yaml").read_text(encoding="utf-8"))
NODES: dict[str, dict[str, str]] = {
    "node-a": {"nvidia.com/gpu": "1"},
    "node-b": {"nvidia.com/gpu": "1"},
}
CORE = f"/api/v1/namespaces/{NAMESPACE}"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
WORKING = ("gateway", "prefill", "decode")
ROLES = ("redis", *WORKING)
POLL_S = 0.1
ADMIN_PORT = 8001


class ProcessCluster:
    """What scenarios ask and do."""

    def __init__(
        self, api: Cluster, kubelet: ProcessKubelet, helm: helm_python.Config, server: ApiServer
    ) -> None:
        self.api = api
        self.kubelet = kubelet
        self.helm = helm
        self.server = server

    def settle(self, values: Mapping[str, Any]) -> None:
        """The release with these values, wherever a scenario before left it."""
        self.upgrade(values)
        self.wait_rolled_out(timeout_s=150)

    @property
    def url(self) -> str:
        """Of the gateways' Service."""
        spec = self.api.get(f"{CORE}/services/{NAME}-baton-gateway")["spec"]
        return f"http://{spec['clusterIP']}:{spec['ports'][0]['port']}"

    def install(self, values: Mapping[str, Any]) -> None:
        self.helm.install(CHART, NAME, dict(values), namespace=NAMESPACE)
        self.wait_rolled_out()

    def upgrade(self, values: Mapping[str, Any], **options: Any) -> None:
        self.helm.upgrade(CHART, NAME, dict(values), namespace=NAMESPACE, **options)

    def scale(self, role: str, replicas: int) -> None:
        self.api.scale(deployment_path(role), replicas)

    def deployment(self, role: str) -> Object:
        return self.api.get(deployment_path(role))

    def pods(self, role: str) -> list[Object]:
        """Also those that are going."""
        label = f"app.kubernetes.io/component={role}"
        items: list[Object] = self.api.get(f"{CORE}/pods?labelSelector={label}")["items"]
        return items

    def versions_spoken(self) -> set[int]:
        """Between gateways that stay and workers, of the protocol."""
        found: set[int] = set()
        staying = [
            pod for pod in self.pods("gateway") if "deletionTimestamp" not in pod["metadata"]
        ]
        for pod in staying:
            url = f"http://{pod['status']['podIP']}:{ADMIN_PORT}/v1/baton/status"
            found.update(each["protocol"] for each in httpx.get(url).json()["workers"])
        return found

    def is_rolled_out(self, role: str) -> bool:
        """All wanted pods are new and ready, and no other is left."""
        wanted = self.deployment(role)["spec"]["replicas"]
        return self.is_replaced(role) and len(self.pods(role)) == wanted

    def is_replaced(self, role: str) -> bool:
        """All wanted pods are new and ready; old ones may still drain."""
        item = self.deployment(role)
        status, wanted = item["status"], item["spec"]["replicas"]
        counts = [status.get(name, 0) for name in ("replicas", "updatedReplicas", "readyReplicas")]
        seen = status.get("observedGeneration") == item["metadata"]["generation"]
        return bool(seen and counts == [wanted] * 3)

    def wait_rolled_out(self, *roles: str, timeout_s: float = 90.0) -> float:
        """Seconds it took, for all roles unless some are named."""
        return self.wait(lambda: all(map(self.is_rolled_out, roles or ROLES)), timeout_s)

    def wait(self, condition: Callable[[], object], timeout_s: float) -> float:
        """Seconds until it holds; AssertionError that shows the pods otherwise."""
        start_s = time.monotonic()
        while not condition():
            assert time.monotonic() < start_s + timeout_s, self.shown()
            time.sleep(POLL_S)
        return time.monotonic() - start_s

    def is_ready(self, role: str) -> bool:
        """As many pods are ready as are wanted, old or new."""
        item = self.deployment(role)
        return bool(item["status"].get("readyReplicas", 0) >= item["spec"]["replicas"])

    def restarts(self) -> dict[str, int]:
        """By name, of all pods of Baton's own."""
        return {
            pod["metadata"]["name"]: sum(
                each["restartCount"] for each in pod["status"].get("containerStatuses", [])
            )
            for role in WORKING
            for pod in self.pods(role)
        }

    def delete_pods(self, role: str) -> None:
        for pod in self.pods(role):
            self.api.delete(f"{CORE}/pods/{pod['metadata']['name']}")

    def gateway_urls(self) -> dict[str, str]:
        """Node -> address of the gateway there."""
        return {
            pod["spec"]["nodeName"]: f"http://{pod['status']['podIP']}:8000"
            for pod in self.pods("gateway")
        }

    def nodes_of(self, role: str) -> set[str]:
        return {pod["spec"]["nodeName"] for pod in self.pods(role)}

    def shown(self) -> str:
        """Every pod's state, the ends of their logs, and the cluster's events."""
        lines = [
            f"{p['metadata']['name']} on {p['spec'].get('nodeName')}: {json.dumps(p['status'])}"
            for p in self.api.get(f"{CORE}/pods")["items"]
        ]
        logs = [f"== {name}\n{text[-1500:]}" for name, text in self.kubelet.logs().items() if text]
        events = [
            f"{e['involvedObject']['name']}: {e['reason']}: {e['message']}"
            for e in self.api.get(f"{CORE}/events")["items"]
        ]
        return "\n".join([*lines, *logs[-8:], *events[-20:]])


def bed_values(**changes: Mapping[str, Any]) -> dict[str, Any]:
    """VALUES, and `changes` of its blocks merged into them."""
    values: dict[str, Any] = deepcopy(VALUES)
    for block, change in changes.items():
        values[block] = merged(values.get(block, {}), change)
    return values


def merged(block: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    both = dict(block)
    for key, value in change.items():
        inner = both.get(key)
        nested = isinstance(inner, Mapping) and isinstance(value, Mapping)
        both[key] = merged(inner, value) if nested and inner is not None else value
    return both


def deployment_path(role: str) -> str:
    return f"{DEPLOYMENTS}/{NAME}-baton-{role}"


@contextmanager
def running_cluster(
    folder: Path, nodes: Mapping[str, Mapping[str, str]] | None = None
) -> Iterator[ProcessCluster]:
    """Empty but for a namespace; `nodes`: name -> devices."""
    assert "KUBE_TESTS_APART" in os.environ, "run it by tests/kube/in_namespaces.sh"
    subprocess.run(f"mount -t tmpfs tmpfs {folder}".split(), check=True)  # noqa: S603
    hosts = folder / "hosts"
    hosts.write_text("127.0.0.1 localhost\n")
    with ExitStack() as stack:
        server = stack.enter_context(running_api_server(folder))
        api = Cluster(stack.enter_context(server.client()))
        api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        stack.enter_context(running_control_plane(server, folder))
        stack.enter_context(running_proxy(server, folder, hosts))
        machine = Machine(server, api, folder / "pods", hosts, next_release_in(folder))
        kubelet = ProcessKubelet(machine, nodes or NODES)
        stack.callback(kubelet.close)
        config = server.kubeconfig
        helm = helm_python.Config(kubeconfig_content=config, namespace=NAMESPACE)
        stack.enter_context(helm)
        yield ProcessCluster(api, kubelet, helm, server)


def next_release_in(folder: Path) -> Path:
    """A checkout that containers can only read, as they can this one."""
    built = build_next_release(folder / "next")
    compileall.compile_dir(built, quiet=2)
    return built


@contextmanager
def running_proxy(server: ApiServer, folder: Path, hosts: Path) -> Iterator[None]:
    config = folder / "proxy.json"
    known = {"port": server.port, "token": server.token, "certificate": str(server.certificate)}
    config.write_text(json.dumps(known))
    command = [sys.executable, "-m", "tests.kube.service_proxy", str(config), str(hosts)]
    with (folder / "proxy.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: S603
    try:
        yield
    finally:
        process.terminate()
        process.wait()
