"""The cluster that is a Kubernetes: Deployments of the chart, and their pods."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from services.autoscaler.kube.api import ConflictError, KubeApi
from services.autoscaler.kube.cluster import Scale, ScaleConflictError
from services.autoscaler.kube.rights import PODS, SCALES, Use
from services.autoscaler.view import PodView, Role

CHART = "baton"
ENDED = ("Failed", "Succeeded")
"""phases of a pod that no longer serves"""


class KubernetesCluster:
    """A `Cluster`: one release of the chart."""

    def __init__(
        self, api: KubeApi, *, namespace: str, release: str, deployments: Mapping[Role, str]
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._release = release
        self._deployments = deployments

    def scale(self, role: Role) -> Scale:
        name = self._deployments[role]
        return self._api.ask(
            Use(SCALES, "get", name),
            self._api.apps.read_namespaced_deployment_scale,
            _scale,
            name=name,
            namespace=self._namespace,
        )

    def order(self, role: Role, replicas: int, version: str) -> None:
        name = self._deployments[role]
        body = {
            "apiVersion": "autoscaling/v1",
            "kind": "Scale",
            "metadata": {
                "name": name,
                "namespace": self._namespace,
                "resourceVersion": version,
            },
            "spec": {"replicas": replicas},
        }
        try:
            self._api.ask(
                Use(SCALES, "update", name),
                self._api.apps.replace_namespaced_deployment_scale,
                _scale,
                name=name,
                namespace=self._namespace,
                body=body,
            )
        except ConflictError as error:
            raise ScaleConflictError(str(error)) from error

    def pods(self, role: Role) -> tuple[PodView, ...]:
        return self._api.ask(
            Use(PODS, "list"),
            self._api.core.list_namespaced_pod,
            _pods,
            namespace=self._namespace,
            label_selector=self._selector(role),
        )

    def _selector(self, role: Role) -> str:
        """The chart's `baton.selector`."""
        labels = {"name": CHART, "instance": self._release, "component": role}
        return ",".join(f"app.kubernetes.io/{label}={value}" for label, value in labels.items())


def _scale(body: Any, _at: datetime) -> Scale:
    # A count of 0 is left out of the JSON.
    return Scale(int(body["spec"].get("replicas", 0)), str(body["metadata"]["resourceVersion"]))


def _pods(body: Any, at: datetime) -> tuple[PodView, ...]:
    return tuple(_pod(item, at) for item in body["items"] if _is_alive(item))


def _is_alive(item: Any) -> bool:
    is_leaving = item["metadata"].get("deletionTimestamp") is not None
    return not is_leaving and item.get("status", {}).get("phase") not in ENDED


def _pod(item: Any, at: datetime) -> PodView:
    created = item["metadata"]["creationTimestamp"]
    conditions = {each["type"]: each for each in item.get("status", {}).get("conditions") or ()}
    return PodView(
        name=str(item["metadata"]["name"]),
        is_ready=conditions.get("Ready", {}).get("status") == "True",
        age_s=_since_s(created, at),
        unschedulable_s=_unschedulable_s(conditions.get("PodScheduled", {}), created, at),
    )


def _unschedulable_s(scheduled: Any, created: str, at: datetime) -> float | None:
    if scheduled.get("status") != "False" or scheduled.get("reason") != "Unschedulable":
        return None
    return _since_s(scheduled.get("lastTransitionTime") or created, at)


def _since_s(moment: str, at: datetime) -> float:
    """Seconds; both are of the API's clock and know whole ones only."""
    return max(0.0, (at - datetime.fromisoformat(moment)).total_seconds())
