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

from tests.chart.release import CHART, render
from tests.chart.release import NAMESPACE as RENDERED
from tests.kube.api_server import ApiServer, Cluster, running_api_server
from tests.kube.job_runner import running_jobs

Installation = tuple[helm_python.Config, Cluster, ApiServer]
HOOK_ACCOUNT = "rel-baton-secrets"
NAMESPACE = "llm"
NAME = "rel"
VALUES = yaml.safe_load((Path(__file__).parent / "values.yaml").read_text(encoding="utf-8"))
CORE = f"/api/v1/namespaces/{NAMESPACE}"
APPS = f"/apis/apps/v1/namespaces/{NAMESPACE}"
DECODE = f"{APPS}/deployments/rel-baton-decode"
PREFILL = f"{APPS}/deployments/rel-baton-prefill"
CELL = f"{CORE}/secrets/rel-baton-cell"
KINDS = {
    "Deployment": 4,
    "Service": 5,
    "ServiceAccount": 4,
    "NetworkPolicy": 6,
    "ConfigMap": 1,
    "Ingress": 1,
    "ScaledObject": 1,
    "Job": 0,
    "Role": 0,
    "RoleBinding": 0,
}
"""objects of the release, and none of the hook; Secrets are the hook's and Helm's, per revision"""


@pytest.fixture(scope="module")
def installation(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Installation]:
    with running_api_server(tmp_path_factory.mktemp("kube")) as server, server.client() as client:
        cluster = Cluster(client)
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        cluster.create("/api/v1/namespaces", namespace)
        cluster.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", scaled_object())
        with (
            running_jobs(server, NAMESPACE, tmp_path_factory.mktemp("jobs")),
            helm_python.Config(kubeconfig_content=server.kubeconfig, namespace=NAMESPACE) as config,
        ):
            yield config, cluster, server


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
    installation: Installation,
) -> None:
    helm, cluster, _ = installation
    empty = cluster.names(NAMESPACE)

    helm.install(CHART, NAME, with_tag("one"), namespace=NAMESPACE)
    installed = cluster.names(NAMESPACE)
    assert counted(installed - empty) == KINDS
    assert image_of(cluster.get(DECODE)) == "baton-engine:one"
    gateway = cluster.get(f"{APPS}/deployments/rel-baton-gateway")
    hook = containers_of(gateway)[0]["lifecycle"]["preStop"]
    assert hook == {"exec": {"command": ["sleep", "10"]}}, "1.20 has no preStop.sleep"
    secret = cluster.get(CELL)["data"]
    assert set(secret) == {"cell-secret", "redis-password", "redis-url"}
    redis = template_of(cluster, "rel-baton-redis")
    revision = revision_of(cluster, "rel-baton-decode")

    cluster.scale(DECODE, 9)
    cluster.scale(PREFILL, 5)
    helm.upgrade(CHART, NAME, with_tag("two"), namespace=NAMESPACE)
    assert image_of(cluster.get(DECODE)) == "baton-engine:two"
    assert revision_of(cluster, "rel-baton-decode") != revision, "old pods do not count"
    assert cluster.get(DECODE)["spec"]["replicas"] == 9, "the autoscaler's number stays"
    assert cluster.get(PREFILL)["spec"]["replicas"] == 2, "the number in the values is the law"
    assert cluster.get(CELL)["data"] == secret, "made once"
    assert template_of(cluster, "rel-baton-redis") == redis, "an upgrade restarts no Redis"

    with pytest.raises(helm_python.HelmError, match="replicaz"):
        helm.upgrade(CHART, NAME, {**with_tag("three"), "replicaz": 1}, namespace=NAMESPACE)
    assert image_of(cluster.get(DECODE)) == "baton-engine:two"

    helm.rollback(NAME)
    assert image_of(cluster.get(DECODE)) == "baton-engine:one"
    assert revision_of(cluster, "rel-baton-decode") == revision
    assert cluster.get(DECODE)["spec"]["replicas"] == 9
    assert cluster.get(CELL)["data"] == secret
    assert len(helm.history(NAME)) == 3

    helm.uninstall(NAME)
    assert cluster.names(NAMESPACE) - empty == {"Secret/rel-baton-cell"}, "as helm/README.md says"

    helm.install(CHART, NAME, with_tag("one"), namespace=NAMESPACE)
    assert cluster.get(CELL)["data"] == secret, "found again"
    helm.uninstall(NAME)
    cluster.delete(CELL)
    assert cluster.names(NAMESPACE) == empty


def test_the_hook_s_account_may_create_secrets_and_nothing_else(
    installation: Installation,
) -> None:
    _, cluster, server = installation
    cluster.create("/api/v1/namespaces", {"metadata": {"name": RENDERED}})
    for group, kind in (
        ("/api/v1", "ServiceAccount"),
        ("/apis/rbac.authorization.k8s.io/v1", "Role"),
        ("/apis/rbac.authorization.k8s.io/v1", "RoleBinding"),
    ):
        item = render({}).named(kind, HOOK_ACCOUNT)
        cluster.create(f"{group}/namespaces/{RENDERED}/{kind.lower()}s", item)
    secrets = f"/api/v1/namespaces/{RENDERED}/secrets"
    with server.client(cluster.token(RENDERED, HOOK_ACCOUNT)) as hook:
        assert hook.post(secrets, json={"metadata": {"name": "s"}}).status_code == 201
        assert hook.post(secrets, json={"metadata": {"name": "s"}}).status_code == 409
        assert hook.post(f"{CORE}/secrets", json={"metadata": {"name": "s"}}).status_code == 403
        for path in (f"{secrets}/s", secrets, f"/api/v1/namespaces/{RENDERED}/pods"):
            assert hook.get(path).status_code == 403
        assert hook.delete(f"{secrets}/s").status_code == 403


def test_from_a_fixed_number_to_an_autoscaler(
    installation: Installation,
) -> None:
    helm, cluster, _ = installation
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
    installation: Installation,
) -> None:
    helm, cluster, _ = installation
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
    template: dict[str, Any] = cluster.get(f"{APPS}/deployments/{name}")["spec"]["template"]
    return template


def revision_of(cluster: Cluster, name: str) -> str:
    """What pods are counted by when they are spread: 1.20 has no matchLabelKeys."""
    template = template_of(cluster, name)
    (spread,) = template["spec"]["topologySpreadConstraints"]
    assert "matchLabelKeys" not in spread
    counted_by: str = spread["labelSelector"]["matchLabels"]["baton/revision"]
    assert template["metadata"]["labels"]["baton/revision"] == counted_by
    return counted_by
