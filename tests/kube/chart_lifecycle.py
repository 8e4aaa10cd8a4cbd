"""The chart on a real API server, by Helm's own engine: install, upgrade, rollback, uninstall.

`make kube-test` runs this file; `make test` does not collect it, because the API server has to be
built first.
"""

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

from tests.chart.release import CHART
from tests.kube.api_server import Cluster, running_api_server

NAMESPACE = "llm"
NAME = "rel"
VALUES = yaml.safe_load((Path(__file__).parent / "values.yaml").read_text(encoding="utf-8"))
CORE = f"/api/v1/namespaces/{NAMESPACE}"
APPS = f"/apis/apps/v1/namespaces/{NAMESPACE}"
DECODE = f"{APPS}/deployments/rel-baton-decode"
PREFILL = f"{APPS}/deployments/rel-baton-prefill"
KINDS = {
    "Deployment": 3,
    "StatefulSet": 1,
    "Service": 4,
    "ServiceAccount": 4,
    "NetworkPolicy": 6,
    "ConfigMap": 1,
    "Ingress": 1,
    "ScaledObject": 1,
}
"""objects of the release; Secrets are two of ours and one of Helm's per revision"""


@pytest.fixture(scope="module")
def installation(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[helm_python.Config, Cluster]]:
    with running_api_server(tmp_path_factory.mktemp("kube")) as server, server.client() as client:
        cluster = Cluster(client)
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        cluster.create("/api/v1/namespaces", namespace)
        cluster.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", scaled_object())
        with helm_python.Config(
            kubeconfig_content=server.kubeconfig, namespace=NAMESPACE
        ) as config:
            yield config, cluster


def scaled_object() -> dict[str, Any]:
    """Enough of KEDA for the API server to take a ScaledObject."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"type": "object", "properties": {"spec": anything}}
    version = {"name": "v1alpha1", "served": True, "storage": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "scaledobjects.keda.sh"},
        "spec": {
            "group": "keda.sh",
            "scope": "Namespaced",
            "names": {
                "plural": "scaledobjects",
                "singular": "scaledobject",
                "kind": "ScaledObject",
            },
            "versions": [{**version, "schema": {"openAPIV3Schema": schema}}],
        },
    }


def with_tag(tag: str) -> dict[str, Any]:
    values: dict[str, Any] = deepcopy(VALUES)
    for image in values["image"].values():
        image["tag"] = tag
    return values


def counted(names: set[str]) -> dict[str, int]:
    kinds = [name.partition("/")[0] for name in names]
    return {kind: kinds.count(kind) for kind in KINDS}


def test_install_upgrade_rollback_uninstall(
    installation: tuple[helm_python.Config, Cluster],
) -> None:
    helm, cluster = installation
    empty = cluster.names(NAMESPACE)

    helm.install(CHART, NAME, with_tag("one"), namespace=NAMESPACE)
    installed = cluster.names(NAMESPACE)
    assert counted(installed - empty) == KINDS
    assert image_of(cluster.get(DECODE)) == "baton-engine:one"
    gateway = cluster.get(f"{APPS}/deployments/rel-baton-gateway")
    hook = containers_of(gateway)[0]["lifecycle"]["preStop"]
    assert hook == {"exec": {"command": ["sleep", "10"]}}, "1.20 has no preStop.sleep"
    secret = cluster.get(f"{CORE}/secrets/rel-baton-redis")["data"]
    redis = template_of(cluster, "rel-baton-redis")

    cluster.scale(DECODE, 9)
    cluster.scale(PREFILL, 5)
    helm.upgrade(CHART, NAME, with_tag("two"), namespace=NAMESPACE)
    assert image_of(cluster.get(DECODE)) == "baton-engine:two"
    assert cluster.get(DECODE)["spec"]["replicas"] == 9, "the autoscaler's number stays"
    assert cluster.get(PREFILL)["spec"]["replicas"] == 2, "the number in the values is the law"
    assert cluster.get(f"{CORE}/secrets/rel-baton-redis")["data"] == secret, "password kept"
    assert template_of(cluster, "rel-baton-redis") == redis, "an upgrade restarts no Redis"

    with pytest.raises(helm_python.HelmError, match="replicaz"):
        helm.upgrade(CHART, NAME, {**with_tag("three"), "replicaz": 1}, namespace=NAMESPACE)
    assert image_of(cluster.get(DECODE)) == "baton-engine:two"

    assert "generated" not in helm.get_values(NAME, all_values=True), "no secret in the values"
    helm.rollback(NAME)
    assert image_of(cluster.get(DECODE)) == "baton-engine:one"
    assert cluster.get(DECODE)["spec"]["replicas"] == 9
    assert cluster.get(f"{CORE}/secrets/rel-baton-redis")["data"] == secret
    assert len(helm.history(NAME)) == 3

    helm.uninstall(NAME)
    assert cluster.names(NAMESPACE) == empty


def test_from_a_fixed_number_to_an_autoscaler(
    installation: tuple[helm_python.Config, Cluster],
) -> None:
    helm, cluster = installation
    values = with_tag("one")
    scaled = values["decode"].pop("autoscaling")
    values["decode"]["replicas"] = 4
    helm.install(CHART, NAME, values, namespace=NAMESPACE)
    assert cluster.get(DECODE)["spec"]["replicas"] == 4
    values["decode"] = {"gpu": {"count": 1}, "pdb": {"enabled": False}, "autoscaling": scaled}
    helm.upgrade(CHART, NAME, values, namespace=NAMESPACE)
    assert cluster.get(DECODE)["spec"]["replicas"] == 1, "as helm/README.md warns"
    helm.uninstall(NAME)


def test_a_client_and_a_server_dry_run_change_nothing(
    installation: tuple[helm_python.Config, Cluster],
) -> None:
    helm, cluster = installation
    before = cluster.names(NAMESPACE)
    for where in ("client", "server"):
        helm.install(CHART, "dry", with_tag("one"), namespace=NAMESPACE, dry_run=where)
    assert cluster.names(NAMESPACE) == before


def containers_of(workload: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = workload["spec"]["template"]["spec"]["containers"]
    return found


def image_of(workload: dict[str, Any]) -> str:
    image: str = containers_of(workload)[0]["image"]
    return image


def template_of(cluster: Cluster, name: str) -> dict[str, Any]:
    template: dict[str, Any] = cluster.get(f"{APPS}/statefulsets/{name}")["spec"]["template"]
    return template
