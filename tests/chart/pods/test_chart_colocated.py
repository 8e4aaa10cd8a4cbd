"""Prefill and decode as two containers of one pod: what each needs is there twice, what is the
pod's once, and what would tell the roles apart is refused."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import helm_python
import pytest

from shared.errors import SettingsError
from shared.transfer.ways.folder import transfer_folder
from tests.chart.process_rules import containers_of_a_pod_differ, processes, settings_of
from tests.chart.process_rules import workers_meet_in_one_folder as one_folder
from tests.chart.reachability import admitted
from tests.chart.release import Object, Release, component, render
from tests.chart.value_sets import COLOCATED, PD_RDMA

ENABLED = {"colocated": {"enabled": True}}


@pytest.fixture(scope="module")
def release() -> Release:
    return render(COLOCATED)


def pod_of(release: Release) -> Object:
    spec: Object = release.workload("colocated")["spec"]["template"]["spec"]
    return spec


def container_of(release: Release, role: str) -> Object:
    (found,) = (c for c in pod_of(release)["containers"] if c["name"] == role)
    container: Object = found
    return container


def test_one_pod_takes_the_place_of_two(release: Release) -> None:
    apart = render({"prefill": {"enabled": True}})
    for kind in ("Deployment", "Service", "PodDisruptionBudget", "ServiceAccount", "NetworkPolicy"):
        of_both = [component(item) for item in apart.of_kind(kind)]
        together = [component(item) for item in release.of_kind(kind)]
        assert {"prefill", "decode"} <= set(of_both)
        assert set(together) == {*of_both, "colocated"} - {"prefill", "decode"}, kind
        assert len(together) == len(of_both) - 1, kind
    assert release.workload("colocated")["spec"]["replicas"] == 3
    assert [c["name"] for c in pod_of(release)["containers"]] == ["prefill", "decode"]
    assert "prefill workers, decode workers in the same pods" in release.notes


def test_each_worker_has_a_name_devices_and_ports_of_its_own(release: Release) -> None:
    found = {role: container for role, _, container in processes(release) if role != "gateway"}
    told = {role: settings_of(container).worker for role, container in found.items()}
    assert {role: (worker.id, worker.port) for role, worker in told.items()} == {
        "prefill": ("pod-0-prefill", 9000),
        "decode": ("pod-0-decode", 9010),
    }
    for container in found.values():
        limits = container["resources"]["limits"]
        assert (limits["nvidia.com/gpu"], limits["rdma/ib"]) == ("1", "1")
    assert found["decode"]["resources"]["limits"]["memory"] == "64Gi"
    shm = {v["name"]: v["emptyDir"] for v in pod_of(release)["volumes"] if v["name"][-3:] == "shm"}
    assert {name: each["sizeLimit"] for name, each in shm.items()} == {
        "prefill-shm": "2Gi",
        "decode-shm": "1Gi",
    }
    (service,) = (o for o in release.of_kind("Service") if component(o) == "colocated")
    assert {port["name"]: port["port"] for port in service["spec"]["ports"]} == {
        "prefill-link": 9000,
        "transfer": 9001,
        "prefill-probe": 9002,
        "decode-link": 9010,
        "decode-transfer": 9011,
        "decode-probe": 9012,
    }


def test_the_pod_waits_for_the_slower_of_both(release: Release) -> None:
    deployment = release.workload("colocated")["spec"]
    assert pod_of(release)["terminationGracePeriodSeconds"] == 5 + 45 + 10
    assert deployment["progressDeadlineSeconds"] == 5 * 900 + 60
    assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    on_cpu = render(ENABLED).workload("colocated")["spec"]
    assert on_cpu["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


def test_rdma_reaches_the_container_and_its_network_the_pod(release: Release) -> None:
    added = {c["name"]: c["securityContext"]["capabilities"] for c in pod_of(release)["containers"]}
    assert added == {
        "prefill": {"drop": ["ALL"], "add": ["IPC_LOCK"]},
        "decode": {"drop": ["ALL"]},
    }
    annotations = release.workload("colocated")["spec"]["template"]["metadata"]["annotations"]
    assert annotations == {"note": "x", "k8s.v1.cni.cncf.io/networks": "roce"}


def test_they_meet_in_a_folder_of_the_pod_without_a_hostpath(
    release: Release, tmp_path: Path
) -> None:
    (volume,) = (v for v in pod_of(release)["volumes"] if v["name"] == "transfer")
    assert volume == {"name": "transfer", "emptyDir": {"sizeLimit": "1Mi"}}
    assert "in one pod by mapped: both are in one pod" in release.notes
    assert "between pods by nixl" in release.notes
    (mount,) = {
        mount["mountPath"]
        for container in pod_of(release)["containers"]
        for mount in container["volumeMounts"]
        if mount["name"] == "transfer"
    }
    named = settings_of(container_of(release, "decode")).handover.transfer_dir
    tmp_path.chmod(0o2777)  # as an emptyDir with fsGroup
    with pytest.raises(SettingsError, match="other users may write"):
        transfer_folder(str(tmp_path))
    assert transfer_folder(named.replace(mount, str(tmp_path))) == tmp_path / "kv"


def test_with_a_hostpath_they_meet_all_workers_of_the_node() -> None:
    release = render(ENABLED | {"transfer": {"hostPath": "/var/lib/kv"}})
    (volume,) = (v for v in pod_of(release)["volumes"] if v["name"] == "transfer")
    assert volume["hostPath"] == {"path": "/var/lib/kv", "type": "Directory"}
    assert list(one_folder(release)) == []
    assert "on one node by mapped: they meet in transfer.hostPath" in release.notes


def test_the_policy_admits_both_links_and_the_other_pods_kv_and_canaries(release: Release) -> None:
    pods = {role: pod["metadata"]["labels"] for role, pod in release.pods()}
    found = {edge for edge in admitted(release, pods) if edge[1] == "colocated"}
    assert found == {
        ("gateway", "colocated", 9000),
        ("gateway", "colocated", 9010),
        ("colocated", "colocated", 9000),
        ("colocated", "colocated", 9010),
        ("colocated", "colocated", 9001),
        ("colocated", "colocated", 9011),
    }


ONE = "a colocated pod is one of each role"
KEDA = {"mode": "keda", "prometheus": {"serverAddress": "http://p"}}
REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"decode": {"autoscaling": KEDA}},
        f"decode.autoscaling: mode keda: {ONE}, so neither is scaled alone",
    ),
    ({"prefill": {"autoscaling": {"mode": "hpa"}}}, "prefill.autoscaling: mode hpa"),
    (
        {role: {"autoscaling": {"mode": "builtin"}} for role in ("prefill", "decode")},
        "prefill.autoscaling: mode builtin",
    ),
    ({"autoscaler": {"advise": True}}, "autoscaler.advise: it weighs prefill against decode"),
    ({"decode": {"replicas": 2}}, f"decode.replicas: {ONE}: colocated.replicas says how many"),
    ({"prefill": {"enabled": False}}, "colocated: it is a prefill and a decode worker"),
    ({"settings": {"workerId": "w"}}, "need names of their own"),
    (
        {"prefill": {"nodeSelector": {"gpu": "h200"}}},
        "prefill.nodeSelector: prefill and decode are in one pod: say it once, as "
        "colocated.nodeSelector",
    ),
    ({"decode": {"extraVolumes": [{"name": "x", "emptyDir": {}}]}}, "as colocated.extraVolumes"),
    ({"decode": {"strategy": {"type": "Recreate"}}}, "as colocated.strategy"),
    ({"decode": {"settings": {"workerPort": 9001}}}, "in one pod and share its ports"),
    ({"settings": {"workerPort": 8990, "transferPort": 9000}}, "in one pod and share its ports"),
    (
        {"colocated": {"enabled": True, "terminationGracePeriodSeconds": 20}},
        "colocated.terminationGracePeriodSeconds is 20: stopping takes up to 40 s",
    ),
    ({"prefill": {"gpu": {"count": 1}}}, "prefill and decode would use other KV types"),
    ({"settings": {"transport": "mapped"}}, "pods of two nodes could not hand over"),
]


@pytest.mark.parametrize(("values", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_what_cannot_be_in_one_pod_is_refused(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(helm_python.HelmRenderError) as refused:
        render({**ENABLED, **values})
    assert reason in str(refused.value)


def test_gateways_are_scaled_as_before() -> None:
    release = render({**ENABLED, "gateway": {"autoscaling": {"mode": "hpa"}}})
    (scaler,) = release.of_kind("HorizontalPodAutoscaler")
    assert scaler["spec"]["scaleTargetRef"]["name"] == "rel-baton-gateway"


def test_separate_pods_are_untouched_by_values_of_the_colocated_one() -> None:
    never = {"colocated": {"enabled": False, "replicas": 7, "nodeSelector": {"a": "b"}}}
    assert render({**PD_RDMA, **never}) == render(PD_RDMA)


MUTANTS: list[Callable[[Release], object]] = [
    lambda r: container_of(r, "decode")["args"].append("--worker-id=$(POD_NAME)-prefill"),
    lambda r: container_of(r, "decode")["ports"][0].update(containerPort=9001),
    lambda r: container_of(r, "decode")["ports"][0].update(name="transfer"),
    lambda r: mount(r, "decode-tmp").update(name="prefill-tmp"),
    lambda r: mount(r, "decode-shm").update(name="prefill-shm"),
]


def mount(release: Release, name: str) -> Object:
    mounts = container_of(release, "decode")["volumeMounts"]
    (found,) = (each for each in mounts if each["name"] == name)
    one: Object = found
    return one


@pytest.mark.parametrize("change", MUTANTS)
def test_what_two_containers_share_is_found(
    release: Release, change: Callable[[Release], object]
) -> None:
    broken = Release(copy.deepcopy(release.objects), "")
    change(broken)
    assert list(containers_of_a_pod_differ(release)) == []
    assert list(containers_of_a_pod_differ(broken))


@pytest.mark.parametrize("path", ["/run/baton", "/run/baton/other"])
def test_a_folder_that_the_transport_would_refuse_is_found(release: Release, path: str) -> None:
    broken = Release(copy.deepcopy(release.objects), "")
    args = container_of(broken, "prefill")["args"]
    args[:] = [arg.replace("/run/baton/kv", path) for arg in args]
    assert list(one_folder(broken))
