"""Scales and pods, asked of an API server over HTTP."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import certifi
import pytest
from kubernetes.config import incluster_config

from services.autoscaler.kube.api import KubeApi
from services.autoscaler.kube.cluster import ClusterUnavailableError, Scale, ScaleConflictError
from services.autoscaler.kube.kubernetes_cluster import KubernetesCluster
from services.autoscaler.view import Role
from shared.errors import MissingError
from tests.rules.sources import ROOT
from tests.support.fakes.kube_api import (
    NAMESPACE,
    TOKEN,
    Asked,
    FakeKubeApi,
    serving,
    write_kubeconfig,
)

CERTIFICATE = ROOT / "tests" / "localhost.pem"
PREFILL, DECODE = "rel-baton-prefill", "rel-baton-decode"
DEPLOYMENTS: dict[Role, str] = {"prefill": PREFILL, "decode": DECODE}
Connect = Callable[..., KubeApi]


def cluster_of(api: KubeApi) -> KubernetesCluster:
    return KubernetesCluster(api, namespace=NAMESPACE, release="rel", deployments=DEPLOYMENTS)


@pytest.fixture
def cluster(server: FakeKubeApi, connect: Connect) -> KubernetesCluster:
    server.add_deployment(PREFILL, 1)
    server.add_deployment(DECODE, 2)
    return cluster_of(connect())


def condition(
    server: FakeKubeApi, kind: str, status: str, since_s: float = 0.0, reason: str = ""
) -> Any:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "lastTransitionTime": moment(server, since_s),
    }


def moment(server: FakeKubeApi, ago_s: float) -> str:
    return (server.now() - timedelta(seconds=ago_s)).strftime("%Y-%m-%dT%H:%M:%SZ")


def add_pod(server: FakeKubeApi, name: str, *conditions: Any, **fields: Any) -> None:
    """A decode pod of the release, 100 s old; `fields` override what it says of itself."""
    labels = {
        "app.kubernetes.io/name": "baton",
        "app.kubernetes.io/instance": fields.get("release", "rel"),
        "app.kubernetes.io/component": fields.get("role", "decode"),
    }
    created = moment(server, fields.get("age_s", 100.0))
    metadata = {"name": name, "labels": labels, "creationTimestamp": created}
    if fields.get("is_leaving"):
        metadata["deletionTimestamp"] = moment(server, 1.0)
    status = {"phase": fields.get("phase", "Running"), "conditions": list(conditions)}
    server.pods.append({"metadata": metadata, "status": status})


def test_an_order_changes_the_scale_of_its_role_alone(
    server: FakeKubeApi, cluster: KubernetesCluster
) -> None:
    scale = cluster.scale("decode")
    assert scale.replicas == 2
    cluster.order("decode", 5, scale.version)
    assert server.replicas == {PREFILL: 1, DECODE: 5}
    assert cluster.scale("decode").replicas == 5
    assert cluster.scale("decode").version != scale.version


def test_a_scale_of_none_is_read_and_ordered(
    server: FakeKubeApi, cluster: KubernetesCluster
) -> None:
    cluster.order("decode", 0, cluster.scale("decode").version)
    assert cluster.scale("decode").replicas == 0
    assert server.replicas[DECODE] == 0


def test_an_order_by_an_old_version_changes_nothing(
    server: FakeKubeApi, cluster: KubernetesCluster
) -> None:
    version = cluster.scale("decode").version
    cluster.order("decode", 3, version)
    with pytest.raises(ScaleConflictError, match="the object has been modified"):
        cluster.order("decode", 9, version)
    assert server.replicas[DECODE] == 3


def test_a_new_status_of_its_pods_alone_makes_an_order_conflict(
    server: FakeKubeApi, cluster: KubernetesCluster
) -> None:
    version = cluster.scale("decode").version
    server.touch(DECODE)
    with pytest.raises(ScaleConflictError):
        cluster.order("decode", 3, version)
    cluster.order("decode", 3, cluster.scale("decode").version)


def test_pods_are_those_of_the_role_and_the_release_that_live(
    server: FakeKubeApi, cluster: KubernetesCluster
) -> None:
    ready = condition(server, "Ready", "True")
    add_pod(server, "serves", ready)
    add_pod(server, "starts", condition(server, "Ready", "False"), phase="Pending")
    add_pod(server, "just-made", phase="Pending")
    add_pod(server, "leaves", ready, is_leaving=True)
    add_pod(server, "evicted", phase="Failed")
    add_pod(server, "over", phase="Succeeded")
    add_pod(server, "other-role", ready, role="prefill")
    add_pod(server, "other-release", ready, release="another")
    pods = {pod.name: pod.is_ready for pod in cluster.pods("decode")}
    assert pods == {"serves": True, "starts": False, "just-made": False}
    assert [pod.name for pod in cluster.pods("prefill")] == ["other-role"]


def test_pods_are_asked_for_by_the_labels_that_the_chart_selects_by(
    server: FakeKubeApi, cluster: KubernetesCluster
) -> None:
    template = (ROOT / "helm/templates/_names.tpl").read_text(encoding="utf-8")
    selector = template.split('define "baton.selector"')[1].split("end -")[0]
    labels = [line.split(":")[0] for line in selector.splitlines() if line.startswith("app.")]
    add_pod(server, "one")
    assert sorted(labels) == sorted(server.pods[0]["metadata"]["labels"])
    for label in labels:
        server.pods.clear()
        add_pod(server, "one")
        server.pods[0]["metadata"]["labels"][label] = "another"
        assert cluster.pods("decode") == (), label


@pytest.mark.parametrize("ahead_s", [0.0, 7200.0, -7200.0])
def test_ages_are_by_the_clock_of_the_api(
    server: FakeKubeApi, cluster: KubernetesCluster, ahead_s: float
) -> None:
    server.ahead_s = ahead_s
    add_pod(server, "waits", condition(server, "PodScheduled", "False", 40.0, "Unschedulable"))
    [pod] = cluster.pods("decode")
    assert pod.unschedulable_s is not None
    assert 40 <= pod.unschedulable_s <= 50
    assert 100 <= pod.age_s <= 110


def test_ages_are_by_the_local_clock_where_an_answer_has_no_date(
    server: FakeKubeApi, cluster: KubernetesCluster
) -> None:
    server.tells_date = False
    add_pod(server, "one")
    [pod] = cluster.pods("decode")
    assert 100 <= pod.age_s <= 110


def test_no_age_is_negative(server: FakeKubeApi, cluster: KubernetesCluster) -> None:
    unschedulable = condition(server, "PodScheduled", "False", -30.0, "Unschedulable")
    add_pod(server, "of-the-future", unschedulable, age_s=-30.0)
    [pod] = cluster.pods("decode")
    assert pod.age_s == 0.0
    assert pod.unschedulable_s == 0.0


def test_a_pod_is_unschedulable_only_where_the_cluster_says_that_it_has_no_place(
    server: FakeKubeApi, cluster: KubernetesCluster
) -> None:
    add_pod(server, "scheduled", condition(server, "PodScheduled", "True", 40.0))
    add_pod(server, "gated", condition(server, "PodScheduled", "False", 40.0, "SchedulingGated"))
    add_pod(server, "unknown")
    assert [pod.unschedulable_s for pod in cluster.pods("decode")] == [None, None, None]


def test_an_api_that_is_away_is_unavailable_and_serves_again_when_it_is_back(
    tmp_path: Path,
) -> None:
    fake = FakeKubeApi()
    fake.add_deployment(DECODE, 2)
    with serving(fake):
        pass
    with connected(tmp_path, fake.port) as cluster:
        with pytest.raises(ClusterUnavailableError, match="refused"):
            cluster.scale("decode")
        with serving(fake):
            assert cluster.scale("decode").replicas == 2
        with pytest.raises(ClusterUnavailableError):
            cluster.scale("decode")


@contextmanager
def connected(folder: Path, port: int, **timeouts_s: float) -> Iterator[KubernetesCluster]:
    with closing(KubeApi(write_kubeconfig(folder, port), **timeouts_s)) as api:
        yield cluster_of(api)


def test_a_slow_api_is_unavailable_in_time_and_asked_once(
    server: FakeKubeApi, connect: Connect
) -> None:
    server.add_deployment(DECODE, 2)
    cluster = cluster_of(connect(read_s=0.2))
    server.slow_s = 30.0
    began_s = time.monotonic()
    with pytest.raises(ClusterUnavailableError, match="timed out"):
        cluster.scale("decode")
    with pytest.raises(ClusterUnavailableError, match="timed out"):
        cluster.order("decode", 3, str(server.versions[DECODE]))
    assert time.monotonic() - began_s < 10.0
    assert [asked.verb for asked in server.asked] == ["get", "update"]


def test_an_api_that_takes_no_connection_is_unavailable_in_time(tmp_path: Path) -> None:
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        port = listener.getsockname()[1]
        began_s = time.monotonic()
        with (
            connected(tmp_path, port, connect_s=0.2, read_s=60.0) as cluster,
            pytest.raises(ClusterUnavailableError, match="timed out"),
        ):
            cluster.scale("decode")
        assert time.monotonic() - began_s < 10.0


def test_a_failing_api_is_unavailable_in_its_own_words(
    server: FakeKubeApi, cluster: KubernetesCluster
) -> None:
    server.is_broken = True
    with pytest.raises(ClusterUnavailableError, match=r"leader changed \(500\)"):
        cluster.pods("decode")


def test_an_order_whose_answer_is_lost_is_sent_once_and_may_be_taken(
    server: FakeKubeApi, cluster: KubernetesCluster
) -> None:
    version = cluster.scale("decode").version
    server.hangs_up = True
    with pytest.raises(ClusterUnavailableError):
        cluster.order("decode", 3, version)
    server.hangs_up = False
    assert cluster.scale("decode").replicas == 3
    assert [asked.verb for asked in server.asked].count("update") == 1


def test_a_refused_token_is_said(server: FakeKubeApi, connect: Connect) -> None:
    with pytest.raises(ClusterUnavailableError, match="the token is not accepted"):
        cluster_of(connect("another")).pods("decode")


def test_a_deployment_that_is_not_there_is_named(
    server: FakeKubeApi, cluster: KubernetesCluster
) -> None:
    del server.replicas[DECODE]
    with pytest.raises(ClusterUnavailableError, match=f'"{DECODE}" not found'):
        cluster.scale("decode")


@pytest.mark.parametrize(
    "says",
    [b"<html>", b"[]", b"null", b"{}", b'{"spec": []}', b'{"spec": {}, "metadata": 1}', b"\xff"],
)
def test_an_answer_that_is_no_scale_is_unavailable(
    server: FakeKubeApi, cluster: KubernetesCluster, says: bytes
) -> None:
    server.says = says
    with pytest.raises(ClusterUnavailableError, match="not understood"):
        cluster.scale("decode")


def test_another_s_change_between_reading_and_ordering_is_not_overwritten(
    server: FakeKubeApi, cluster: KubernetesCluster
) -> None:
    def somebody_scales(asked: Asked) -> None:
        if asked.verb == "update":
            server.add_deployment(DECODE, 7)

    server.before = somebody_scales
    with pytest.raises(ScaleConflictError):
        cluster.order("decode", 1, cluster.scale("decode").version)
    assert server.replicas[DECODE] == 7


def test_outside_a_cluster_the_error_has_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(MissingError, match="name a kubeconfig file"):
        KubeApi()
    with pytest.raises(MissingError, match="name a kubeconfig file"):
        KubeApi(tmp_path / "nonesuch")


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKubeApi]:
    """This process has what Kubernetes gives a pod; the API server speaks TLS."""
    (tmp_path / "token").write_text(TOKEN, encoding="utf-8")
    (tmp_path / "ca.crt").write_bytes(CERTIFICATE.read_bytes())
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    with serving(FakeKubeApi(), CERTIFICATE) as fake:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(fake.port))
        fake.add_deployment(DECODE, 2)
        yield fake


def test_in_a_pod_the_token_and_the_authority_of_its_account_are_used(pod: FakeKubeApi) -> None:
    with closing(KubeApi()) as api:
        assert cluster_of(api).scale("decode").replicas == 2


def test_a_server_that_the_authority_does_not_know_is_unavailable(
    pod: FakeKubeApi, tmp_path: Path
) -> None:
    (tmp_path / "ca.crt").write_text(Path(certifi.where()).read_text(encoding="utf-8"))
    with (
        closing(KubeApi()) as api,
        pytest.raises(ClusterUnavailableError, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        cluster_of(api).scale("decode")
    assert pod.asked == []


def test_a_scale_is_what_the_api_says_of_it(
    server: FakeKubeApi, cluster: KubernetesCluster
) -> None:
    assert cluster.scale("prefill") == Scale(1, str(server.versions[PREFILL]))
