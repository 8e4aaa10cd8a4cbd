"""What the chart does about the ordinary events of a cluster: rollouts, lost nodes, a new Redis."""

import pytest

from tests.chart.release import Object, Release, render

ROLES = ("gateway", "prefill", "decode")


@pytest.fixture(scope="module")
def default() -> Release:
    return render({})


def pod_spec(release: Release, role: str) -> Object:
    spec: Object = release.workload(role)["spec"]["template"]["spec"]
    return spec


def test_redis_is_replaced_at_once_and_reached_at_once(default: Release) -> None:
    """A StatefulSet's pod on a lost node stays until somebody deletes it; a Service without
    `publishNotReadyAddresses` has no endpoint until a probe has asked."""
    redis = default.workload("redis")
    assert (redis["kind"], redis["spec"]["strategy"]) == ("Deployment", {"type": "Recreate"})
    probe = redis["spec"]["template"]["spec"]["containers"][0]["startupProbe"]
    assert probe["periodSeconds"] == 1
    (service,) = [o for o in default.of_kind("Service") if o["metadata"]["name"].endswith("redis")]
    assert service["spec"]["publishNotReadyAddresses"] is True


@pytest.mark.parametrize("role", [*ROLES, "redis"])
def test_pods_of_a_lost_node_start_elsewhere_after_half_a_minute(
    default: Release, role: str
) -> None:
    found = {one["key"]: one["tolerationSeconds"] for one in pod_spec(default, role)["tolerations"]}
    assert found == {"node.kubernetes.io/not-ready": 30, "node.kubernetes.io/unreachable": 30}


def test_the_user_s_tolerations_stay(default: Release) -> None:
    taint = {"key": "nvidia.com/gpu", "operator": "Exists"}
    prefill = pod_spec(render({"prefill": {"tolerations": [taint]}, "lostNodeS": 5}), "prefill")
    assert prefill["tolerations"][0] == taint
    assert [one["tolerationSeconds"] for one in prefill["tolerations"][1:]] == [5, 5]


def test_a_rollout_needs_no_spare_gpu() -> None:
    release = render({"prefill": {"gpu": {"count": 1}}, "decode": {"gpu": {"count": 1}}})
    found = {role: release.workload(role)["spec"]["strategy"]["rollingUpdate"] for role in ROLES}
    first = {"maxSurge": 1, "maxUnavailable": 0}
    after = {"maxSurge": 0, "maxUnavailable": 1}
    assert found == {"gateway": first, "prefill": after, "decode": after}
    ours = {"maxSurge": 2, "maxUnavailable": 0}
    gpu = {"gpu": {"count": 1}, "strategy": {"rollingUpdate": ours}}
    release = render({"prefill": gpu, "decode": gpu})
    assert release.workload("decode")["spec"]["strategy"]["rollingUpdate"] == ours


@pytest.mark.parametrize("role", ROLES)
def test_a_rollout_fails_only_after_a_start_has(default: Release, role: str) -> None:
    spec = default.workload(role)["spec"]
    probe = spec["template"]["spec"]["containers"][0]["startupProbe"]
    start_s = probe["periodSeconds"] * probe["failureThreshold"]
    assert spec["progressDeadlineSeconds"] == start_s + 60


def test_two_gateways_that_wait_for_their_last_answers(default: Release) -> None:
    assert default.workload("gateway")["spec"]["replicas"] == 2
    gateway = pod_spec(default, "gateway")
    assert "--drain-s=600" in gateway["containers"][0]["args"]
    assert gateway["terminationGracePeriodSeconds"] == 10 + 600 + 10


def test_a_rollout_s_old_pods_and_broken_pods_hold_no_place(default: Release) -> None:
    """On clusters that know how; `test_lint_is_clean` renders for one that does not."""
    (spread,) = pod_spec(default, "decode")["topologySpreadConstraints"]
    assert spread["matchLabelKeys"] == ["pod-template-hash"]
    budgets = default.of_kind("PodDisruptionBudget")
    assert [one["spec"]["unhealthyPodEvictionPolicy"] for one in budgets] == ["AlwaysAllow"] * 3


def test_a_pod_takes_what_its_user_brings() -> None:
    volume = {"name": "ca", "configMap": {"name": "ca"}}
    mount = {"name": "ca", "mountPath": "/etc/ca"}
    decode = {
        "schedulerName": "volcano",
        "serviceAccountName": "ours",
        "readOnlyRootFilesystem": False,
        "initContainers": [{"name": "first", "image": "busybox"}],
        "extraVolumes": [volume],
        "extraVolumeMounts": [mount],
    }
    extra = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-x"}}
    release = render({"decode": decode, "extraObjects": [extra]})
    spec = pod_spec(release, "decode")
    container = spec["containers"][0]
    assert (spec["schedulerName"], spec["serviceAccountName"]) == ("volcano", "ours")
    assert spec["initContainers"] == decode["initContainers"]
    assert volume in spec["volumes"]
    assert mount in container["volumeMounts"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is False
    names = [o["metadata"]["name"] for o in release.objects]
    assert "rel-x" in names
    assert "rel-baton-decode" not in [
        o["metadata"]["name"] for o in release.of_kind("ServiceAccount")
    ]
