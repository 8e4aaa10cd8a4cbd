"""A cluster on this machine: the real API server, controllers and scheduler, and pods as processes.

`in_namespaces.sh` runs the tests where all this is possible.
"""

import compileall
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import helm_python
import httpx

from tests.kube.api_server import ApiServer, Cluster, running_api_server
from tests.kube.chart_cluster import NAMESPACE, ChartCluster
from tests.kube.container import Container
from tests.kube.control_plane import running_control_plane
from tests.kube.podman_container import PodmanContainer, prepare
from tests.kube.process_kubelet import ProcessKubelet
from tests.kube.process_pod import Machine
from tests.support.next_release import build_next_release

NODES: dict[str, dict[str, str]] = {
    "node-a": {"nvidia.com/gpu": "1"},
    "node-b": {"nvidia.com/gpu": "1"},
}
ADMIN_PORT = 8001
CONTAINERS = os.environ.get("KUBE_TEST_PODS") == "containers"
"""pods are podman's containers of real images instead of processes of this checkout"""


class ProcessCluster(ChartCluster):
    """One whose nodes and pods are within reach too."""

    def __init__(
        self, api: Cluster, kubelet: ProcessKubelet, helm: helm_python.Config, server: ApiServer
    ) -> None:
        super().__init__(api, helm)
        self.kubelet = kubelet
        self.server = server

    def gateway_urls(self) -> dict[str, str]:
        """Node -> address of the gateway there."""
        return {
            pod["spec"]["nodeName"]: f"http://{pod['status']['podIP']}:8000"
            for pod in self.pods("gateway")
        }

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

    def logs(self) -> dict[str, str]:
        return self.kubelet.logs()


@contextmanager
def running_cluster(
    folder: Path, nodes: Mapping[str, Mapping[str, str]] | None = None
) -> Iterator[ProcessCluster]:
    """Empty but for a namespace; `nodes`: name -> devices."""
    assert "KUBE_TESTS_APART" in os.environ, "run it by tests/kube/in_namespaces.sh"
    subprocess.run(f"mount -t tmpfs tmpfs {folder}".split(), check=True)  # noqa: S603
    if CONTAINERS:
        prepare()
    hosts = folder / "hosts"
    hosts.write_text("127.0.0.1 localhost\n")
    with ExitStack() as stack:
        server = stack.enter_context(running_api_server(folder))
        api = Cluster(stack.enter_context(server.client()))
        api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        stack.enter_context(running_control_plane(server, folder))
        stack.enter_context(running_proxy(server, folder, hosts))
        run = PodmanContainer if CONTAINERS else Container
        machine = Machine(server, api, folder / "pods", hosts, next_release_in(folder), run)
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
