"""Every rendering keeps every rule, and every rule finds what breaks it."""

import base64
import copy
import re
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest

from shared.protocol import Load
from shared.telemetry.metrics import GatewayMetrics
from shared.telemetry.worker_metrics import WorkerSample
from tests.chart import invariants, process_rules
from tests.chart.reachability import outward_ports, traffic_is_what_baton_needs
from tests.chart.references import references_resolve
from tests.chart.release import Object, Release, render
from tests.chart.value_sets import VALUE_SETS

RULES = (*invariants.RULES, *process_rules.RULES, traffic_is_what_baton_needs)


@pytest.fixture(scope="module")
def releases() -> dict[str, Release]:
    return {name: render(values) for name, values in VALUE_SETS.items()}


def problems(release: Release, values: dict[str, Any]) -> dict[str, list[str]]:
    """What each rule finds; rules that find nothing are left out. Of a release whose processes
    do not start only that is said."""
    wrong = list(process_rules.processes_start(release))
    if wrong:
        return {process_rules.processes_start.__name__: wrong}
    found = {rule.__name__: list(rule(release)) for rule in RULES}
    found[references_resolve.__name__] = list(references_resolve(release, values))
    return {name: texts for name, texts in found.items() if texts}


@pytest.mark.parametrize("name", VALUE_SETS)
def test_every_rule_holds(releases: dict[str, Release], name: str) -> None:
    assert problems(releases[name], VALUE_SETS[name]) == {}


Change = Callable[[Release], None]


def pod_of(release: Release, role: str) -> Object:
    spec: Object = release.workload(role)["spec"]["template"]["spec"]
    return spec


def container_of(release: Release, role: str) -> Object:
    container: Object = pod_of(release, role)["containers"][0]
    return container


def policy_of(release: Release, role: str) -> Object:
    spec: Object = release.named("NetworkPolicy", f"rel-baton-{role}")["spec"]
    return spec


def replace_arg(release: Release, role: str, old: str, new: str) -> None:
    args = container_of(release, role)["args"]
    assert any(old in arg for arg in args)
    args[:] = [arg.replace(old, new) for arg in args]


def show_secret(release: Release) -> None:
    text = invariants.secret_texts(release)[0]
    container_of(release, "gateway")["args"].append(f"--served-model-name={text}")


MUTANTS: list[tuple[str, Change]] = [
    (
        "selectors_match_labels",
        lambda r: r.named("Service", "rel-baton-decode")["spec"]["selector"].popitem(),
    ),
    (
        "selectors_match_labels",
        lambda r: r.workload("redis")["spec"]["template"]["metadata"]["labels"].update(
            {"app.kubernetes.io/component": "cache"}
        ),
    ),
    (
        "ports_exist",
        lambda r: r.named("Service", "rel-baton-gateway")["spec"]["ports"][0].update(
            targetPort="web"
        ),
    ),
    (
        "ports_exist",
        lambda r: container_of(r, "gateway")["readinessProbe"]["httpGet"].update(port="web"),
    ),
    (
        "services_exist",
        lambda r: r.of_kind("Ingress")[0]["spec"]["rules"][0]["http"]["paths"][0]["backend"][
            "service"
        ].update(name="web"),
    ),
    ("services_exist", lambda r: r.workload("redis")["spec"].update(serviceName="gone")),
    (
        "monitors_and_spreads_match_labels",
        lambda r: r.of_kind("ServiceMonitor")[0]["spec"]["selector"]["matchLabels"].update(a="b"),
    ),
    (
        "monitors_and_spreads_match_labels",
        lambda r: pod_of(r, "decode")["topologySpreadConstraints"][0].update(
            labelSelector={"matchLabels": {"app": "x"}}
        ),
    ),
    ("autoscaled_have_no_replicas", lambda r: r.workload("decode")["spec"].update(replicas=3)),
    ("autoscaled_have_no_replicas", lambda r: r.workload("prefill")["spec"].pop("replicas")),
    (
        "devices_are_guaranteed",
        lambda r: container_of(r, "decode")["resources"]["limits"].update({"nvidia.com/gpu": 1}),
    ),
    (
        "devices_are_guaranteed",
        lambda r: container_of(r, "decode")["resources"]["requests"].pop("nvidia.com/gpu"),
    ),
    (
        "every_container_is_restricted",
        lambda r: container_of(r, "redis")["securityContext"].pop("readOnlyRootFilesystem"),
    ),
    (
        "every_container_is_restricted",
        lambda r: container_of(r, "decode")["securityContext"]["capabilities"].update(
            add=["IPC_LOCK"]
        ),
    ),
    (
        "every_container_is_restricted",
        lambda r: pod_of(r, "prefill")["volumes"].append(
            {"name": "models", "hostPath": {"path": "/models"}}
        ),
    ),
    (
        "every_container_is_restricted",
        lambda r: pod_of(r, "gateway")["securityContext"].pop("seccompProfile"),
    ),
    ("no_pod_has_a_token", lambda r: pod_of(r, "decode").pop("automountServiceAccountToken")),
    ("no_pod_has_a_token", lambda r: pod_of(r, "gateway").pop("enableServiceLinks")),
    ("no_pod_has_a_token", lambda r: pod_of(r, "gateway").update(serviceAccountName="default")),
    ("secrets_are_files", show_secret),
    (
        "secrets_are_files",
        lambda r: container_of(r, "decode")["env"].append(
            {
                "name": "X",
                "valueFrom": {"secretKeyRef": {"name": "rel-baton-kv", "key": "kv-secret"}},
            }
        ),
    ),
    (
        "references_resolve",
        lambda r: pod_of(r, "redis")["volumes"][1]["configMap"].update(name="gone"),
    ),
    ("references_resolve", lambda r: container_of(r, "prefill")["volumeMounts"].pop()),
    ("references_resolve", lambda r: r.of_kind("Secret")[0]["data"].clear()),
    ("processes_start", lambda r: replace_arg(r, "prefill", "--drain-s", "--drain-seconds")),
    ("processes_start", lambda r: replace_arg(r, "gateway", "--port=8080", "--port=8081")),
    ("processes_start", lambda r: replace_arg(r, "decode", "$(POD_IP)", "127.0.0.1")),
    ("processes_start", lambda r: container_of(r, "decode").update(env=[])),
    ("one_pool", lambda r: replace_arg(r, "gateway", "--device=cuda", "--device=cpu")),
    ("one_pool", lambda r: container_of(r, "decode")["args"].append("--block-size=32")),
    (
        "pods_have_time_to_stop",
        lambda r: pod_of(r, "prefill").update(terminationGracePeriodSeconds=15),
    ),
    ("pods_have_time_to_stop", lambda r: container_of(r, "gateway").pop("lifecycle")),
    (
        "probes_ask_what_is_answered",
        lambda r: container_of(r, "decode")["readinessProbe"]["httpGet"].update(path="/readyz"),
    ),
    (
        "probes_ask_what_is_answered",
        lambda r: container_of(r, "decode")["livenessProbe"]["httpGet"].update(path="/ready"),
    ),
    (
        "probes_ask_what_is_answered",
        lambda r: container_of(r, "decode")["startupProbe"]["httpGet"].update(port="link"),
    ),
    ("traffic_is_what_baton_needs", lambda r: policy_of(r, "prefill")["ingress"].pop()),
    ("traffic_is_what_baton_needs", lambda r: policy_of(r, "gateway")["egress"].clear()),
    (
        "traffic_is_what_baton_needs",
        lambda r: policy_of(r, "redis")["ingress"][0].pop("from"),
    ),
    (
        "traffic_is_what_baton_needs",
        lambda r: policy_of(r, "decode")["ingress"][0]["from"].append({"podSelector": {}}),
    ),
]


@pytest.mark.parametrize(
    ("rule", "change"), MUTANTS, ids=[f"{i}-{m[0]}" for i, m in enumerate(MUTANTS)]
)
def test_a_broken_release_is_found(releases: dict[str, Release], rule: str, change: Change) -> None:
    broken = Release(copy.deepcopy(releases["everything"].objects), "")
    change(broken)
    assert rule in problems(broken, VALUE_SETS["everything"])


def test_every_rule_has_a_mutant() -> None:
    rules = {rule.__name__ for rule in (*RULES, references_resolve)}
    assert {rule for rule, _ in MUTANTS} == rules


def test_only_named_ports_leave_the_release(releases: dict[str, Release]) -> None:
    assert outward_ports(releases["default"], "decode") == {53}
    assert outward_ports(releases["everything"], "gateway") == {53, 4318, 5353}
    assert outward_ports(releases["external-redis"], "prefill") == {53, 6380}
    assert outward_ports(releases["external-redis-secret"], "prefill") == {53, 6390}
    assert outward_ports(releases["existing-secret"], "prefill") == {53, 443}
    assert outward_ports(releases["existing-secret"], "redis") == set()


def test_listed_clients_alone_call_the_gateway(releases: dict[str, Release]) -> None:
    (rule,) = policy_of(releases["everything"], "gateway")["ingress"]
    assert {"podSelector": {"matchLabels": {"app": "web"}}} in rule["from"]
    assert len(rule["from"]) == 2, "the clients, and helm test"


def test_a_changed_config_or_secret_restarts_its_readers_only() -> None:
    first, again, resized = render({}), render({}), render({"redis": {"maxmemory": "100mb"}})
    config = [annotations(release, "redis")["checksum/config"] for release in (first, again)]
    assert config[0] == config[1] != annotations(resized, "redis")["checksum/config"]
    for release in (first, again):
        password = secret_text(release, "rel-baton-redis", "password")
        salt = secret_text(release, "rel-baton-kv", "kv-secret")
        assert password in secret_text(release, "rel-baton-redis", "url")
        expected = {"gateway": f"{password}\n{salt}", "decode": password, "redis": password}
        for role, text in expected.items():
            found = annotations(release, role)["checksum/secrets"]
            assert found == sha256(text.encode()).hexdigest()
    assert annotations(first, "decode") != annotations(again, "decode"), "made anew without cluster"


def secret_text(release: Release, name: str, key: str) -> str:
    return base64.b64decode(release.named("Secret", name)["data"][key]).decode()


def annotations(release: Release, role: str) -> dict[str, str]:
    found: dict[str, str] = release.workload(role)["spec"]["template"]["metadata"]["annotations"]
    return found


def test_a_role_s_own_settings_win_even_when_they_are_zero_or_false() -> None:
    values = {
        "settings": {"prefixCache": True, "maxModelLen": 4096, "drainS": 5},
        "decode": {"settings": {"prefixCache": False, "maxModelLen": 0}},
    }
    release = render(values)
    found = {
        role: process_rules.settings_of(container_of(release, role))
        for role in ("prefill", "decode")
    }
    assert (found["prefill"].prefix_cache, found["prefill"].max_model_len) == (True, 4096)
    assert (found["decode"].prefix_cache, found["decode"].max_model_len) == (False, 0)


def test_large_numbers_are_written_in_full(releases: dict[str, Release]) -> None:
    gateway = process_rules.settings_of(container_of(releases["everything"], "gateway"))
    assert gateway.max_live_requests == 2_000_000
    prefill = process_rules.settings_of(container_of(releases["pd-rdma"], "prefill"))
    assert prefill.max_body_bytes == 8_388_608


def test_recreate_takes_no_limits_of_a_rolling_update(releases: dict[str, Release]) -> None:
    decode = releases["external-redis-secret"].workload("decode")
    assert decode["spec"]["strategy"] == {"type": "Recreate"}


def unknown_in(query: str) -> set[str]:
    """Metrics and labels of a query that the gateway does not export."""
    load = Load(1, 0, 0, 0, 4, 4, 0, 0)
    metrics = GatewayMetrics(lambda: [WorkerSample("d", "decode", load, {}, {})])
    exported = set(re.findall(r"\bbaton_\w+|(?<=[{,])\w+(?==)", metrics.text().decode()))
    named = set(re.findall(r"\bbaton_\w+|(?<=[{,])\w+(?==)|(?<=by \()\w+", query))
    return named - exported - {"namespace"}


def test_autoscalers_ask_for_metrics_that_exist(releases: dict[str, Release]) -> None:
    queries = [
        item["spec"]["triggers"][0]["metadata"]["query"]
        for item in releases["keda"].of_kind("ScaledObject")
    ]
    assert len(queries) == 2
    assert [unknown_in(query) for query in queries] == [set(), set()]
    assert unknown_in('sum(max by (pod) (baton_queued{role="x",kind="y"}))') == {
        "baton_queued",
        "kind",
        "pod",
    }


def test_a_new_chart_alone_restarts_nothing(releases: dict[str, Release]) -> None:
    for _, pod in releases["default"].pods():
        if pod.get("kind") != "Pod":
            assert not {"helm.sh/chart", "app.kubernetes.io/version"} & set(
                pod["metadata"]["labels"]
            )
