"""The release of the chart in a cluster, seen through the API server alone."""

import json
import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import helm_python
import yaml

from tests.chart.release import CHART, NAME
from tests.kube.api_server import Cluster, Object

NAMESPACE = "llm"
VALUES = yaml.safe_load((Path(__file__).parent / "bed_values.yaml").read_text(encoding="utf-8"))
CORE = f"/api/v1/namespaces/{NAMESPACE}"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
WORKING = ("gateway", "prefill", "decode")
ROLES = ("redis", *WORKING)
POLL_S = 0.1


class ChartCluster:
    """What scenarios ask and do in any cluster."""

    def __init__(self, api: Cluster, helm: helm_python.Config) -> None:
        self.api = api
        self.helm = helm

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

    def nodes_of(self, role: str) -> set[str]:
        return {pod["spec"]["nodeName"] for pod in self.pods(role)}

    def logs(self) -> dict[str, str]:
        """By name of the pod."""
        names = [each["metadata"]["name"] for each in self.api.get(f"{CORE}/pods")["items"]]
        return {name: self.api.text(f"{CORE}/pods/{name}/log?tailLines=30") for name in names}

    def shown(self) -> str:
        """Every pod's state, the ends of their logs, and the cluster's events."""
        lines = [
            f"{p['metadata']['name']} on {p['spec'].get('nodeName')}: {json.dumps(p['status'])}"
            for p in self.api.get(f"{CORE}/pods")["items"]
        ]
        logs = [f"== {name}\n{text[-1500:]}" for name, text in self.logs().items() if text]
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
