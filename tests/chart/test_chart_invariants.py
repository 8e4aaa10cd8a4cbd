"""Every rendering keeps every rule, and every rule finds what breaks it."""

import copy
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from shared.protocol import Load
from shared.telemetry.metrics import GatewayFacts, GatewayMetrics
from shared.telemetry.worker_metrics import WorkerSample
from tests.chart import invariants, process_rules
from tests.chart.autoscaler_rules import AUTOSCALER_RULES
from tests.chart.reachability import outward_ports, traffic_is_what_baton_needs
from tests.chart.references import references_resolve
from tests.chart.release import Object, Release, render
from tests.chart.value_sets import VALUE_SETS

RULES = (*invariants.RULES, *process_rules.RULES, traffic_is_what_baton_needs)
ELSEWHERE = {*AUTOSCALER_RULES, *process_rules.COLOCATED_RULES}


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


def hook_of(release: Release) -> Object:
    container: Object = dict(release.pods())["secrets"]["spec"]["containers"][0]
    return container


def volume_of(release: Release, role: str, name: str) -> Object:
    volume: Object
    (volume,) = (v for v in pod_of(release, role)["volumes"] if v["name"] == name)
    return volume


def drop_variable(release: Release, role: str, name: str) -> None:
    variables = container_of(release, role)["env"]
    variables[:] = [item for item in variables if item["name"] != name]


CELL = "cell-secret"
MEET, RANKS = "workers_meet_in_one_folder", "every_rank_has_a_gpu"
RIGHTS = invariants.the_hook_alone_has_rights_and_only_while_it_runs.__name__
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
    (
        "services_exist",
        lambda r: r.of_kind("HTTPRoute")[0]["spec"]["rules"][0]["backendRefs"][0].update(port=1),
    ),
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
    (RIGHTS, lambda r: r.of_kind("Role")[0]["rules"][0]["verbs"].append("get")),
    (RIGHTS, lambda r: r.of_kind("Role")[0]["metadata"].pop("annotations")),
    (RIGHTS, lambda r: r.of_kind("Role")[0].update(kind="ClusterRole")),
    (RIGHTS, lambda r: r.of_kind("RoleBinding")[0]["subjects"][0].update(name="default")),
    (
        RIGHTS,
        lambda r: r.of_kind("Job")[0]["metadata"]["annotations"].update(
            {"helm.sh/hook-weight": "-9"}
        ),
    ),
    ("secrets_are_files", lambda r: r.of_kind("ConfigMap")[0].update(kind="Secret")),
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
    (
        "references_resolve",
        lambda r: pod_of(r, "gateway")["volumes"][-1]["secret"]["items"][0].update(key="x"),
    ),
    ("references_resolve", lambda r: hook_of(r)["args"].__setitem__(1, "other")),
    ("processes_start", lambda r: replace_arg(r, "prefill", "--drain-s", "--drain-seconds")),
    ("processes_start", lambda r: replace_arg(r, "gateway", "--port=8080", "--port=8081")),
    ("processes_start", lambda r: replace_arg(r, "decode", "$(POD_IP)", "127.0.0.1")),
    ("processes_start", lambda r: container_of(r, "decode").update(env=[])),
    ("one_pool", lambda r: replace_arg(r, "gateway", "--device=cuda", "--device=cpu")),
    ("one_pool", lambda r: container_of(r, "decode")["args"].append("--block-size=32")),
    (RANKS, lambda r: container_of(r, "decode")["args"].append("--tp=2")),
    (RANKS, lambda r: container_of(r, "prefill")["resources"]["limits"].pop("nvidia.com/gpu")),
    (RANKS, lambda r: volume_of(r, "decode", "shm").update(emptyDir={"sizeLimit": "1Gi"})),
    ("one_cell", lambda r: drop_variable(r, "decode", "BATON_CELL_SECRET_FILE")),
    ("one_cell", lambda r: volume_of(r, "prefill", CELL)["secret"].update(secretName="x")),
    ("one_cell", lambda r: volume_of(r, "gateway", CELL)["secret"]["items"][0].update(key="x")),
    (MEET, lambda r: volume_of(r, "prefill", "transfer")["hostPath"].update(path="/elsewhere")),
    (MEET, lambda r: replace_arg(r, "decode", "--transfer-dir=/run", "--transfer-dir=/tmp")),
    (MEET, lambda r: pod_of(r, "decode")["volumes"].remove(volume_of(r, "decode", "transfer"))),
    (
        "every_container_is_restricted",
        lambda r: volume_of(r, "decode", "transfer")["hostPath"].update(type="DirectoryOrCreate"),
    ),
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
    (
        "probes_ask_what_is_answered",
        lambda r: container_of(r, "gateway")["readinessProbe"]["httpGet"].update(port="http"),
    ),
    ("traffic_is_what_baton_needs", lambda r: policy_of(r, "prefill")["ingress"].pop()),
    ("traffic_is_what_baton_needs", lambda r: policy_of(r, "gateway")["egress"].clear()),
    (
        "traffic_is_what_baton_needs",
        lambda r: policy_of(r, "redis")["ingress"][0].pop("from"),
    ),
    (
        "traffic_is_what_baton_needs",
        lambda r: policy_of(r, "gateway")["ingress"][1].update({"from": [{"podSelector": {}}]}),
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
    rules = {rule.__name__ for rule in {*RULES, references_resolve} - ELSEWHERE}
    assert {rule for rule, _ in MUTANTS} == rules


def test_only_named_ports_leave_the_release(releases: dict[str, Release]) -> None:
    assert outward_ports(releases["default"], "decode") == {53}
    assert outward_ports(releases["everything"], "gateway") == {53, 4318, 5353}
    assert outward_ports(releases["external-redis"], "prefill") == {53, 6380}
    assert outward_ports(releases["external-redis-secret"], "prefill") == {53, 6390}
    assert outward_ports(releases["existing-secret"], "prefill") == {53, 443}
    assert outward_ports(releases["existing-secret"], "redis") == set()


def test_listed_clients_alone_call_the_gateway(releases: dict[str, Release]) -> None:
    clients, scrapers, _ = policy_of(releases["everything"], "gateway")["ingress"]
    assert {"podSelector": {"matchLabels": {"app": "web"}}} in clients["from"]
    assert len(clients["from"]) == 2, "the clients, and helm test"
    assert scrapers["ports"] == [{"port": 8001, "protocol": "TCP"}]
    assert scrapers["from"] == [{"podSelector": {"matchLabels": {"app": "prometheus"}}}]


def test_helm_test_alone_reaches_the_admin_port_by_default(releases: dict[str, Release]) -> None:
    release = releases["default"]
    clients, admin = policy_of(release, "gateway")["ingress"]
    assert [port["port"] for port in clients["ports"]] == [8000]
    assert [port["port"] for port in admin["ports"]] == [8001]
    (peer,) = admin["from"]
    assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "test"
    assert release.named("Service", "rel-baton-gateway-admin")["spec"]["clusterIP"] == "None"


@pytest.mark.parametrize("kind", ["Ingress", "HTTPRoute"])
def test_what_clients_call_is_published_and_nothing_else(
    releases: dict[str, Release], kind: str
) -> None:
    (rule,) = releases["everything"].of_kind(kind)[0]["spec"]["rules"]
    paths = (
        [path["path"] for path in rule["http"]["paths"]]
        if kind == "Ingress"
        else [match["path"]["value"] for match in rule["matches"]]
    )
    prefixes = [path.strip("/").split("/") for path in paths]

    def published(path: str) -> bool:
        parts = path.strip("/").split("/")
        return any(parts[: len(prefix)] == prefix for prefix in prefixes)

    chats = ("/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens")
    others = ("/v1/completions", "/v1/responses", "/v1/models/demo")
    assert all(map(published, (*chats, *others)))
    hidden = ("/v1/baton/status", "/v1/baton/requests/1", "/metrics", "/health", "/ready")
    assert not any(map(published, hidden))


def test_the_hook_reaches_the_api_server_and_nothing_else(releases: dict[str, Release]) -> None:
    (rule,) = policy_of(releases["default"], "secrets")["egress"]
    assert [port["port"] for port in rule["ports"]] == [443, 6443]
    (narrowed,) = policy_of(releases["everything"], "secrets")["egress"]
    assert narrowed["to"] == [{"ipBlock": {"cidr": "10.0.0.1/32"}}]


def test_no_secret_is_made_where_all_exist(releases: dict[str, Release]) -> None:
    assert "secrets" not in dict(releases["existing-secret"].pods())
    assert "secrets" in dict(releases["external-redis"].pods()), "the cell's"
    redis_alone = render({"cellSecret": {"existingSecret": "c"}})
    assert "secrets" in dict(redis_alone.pods()), "its password"


def test_a_changed_config_restarts_redis() -> None:
    first, again, resized = render({}), render({}), render({"redis": {"maxmemory": "100mb"}})
    config = [annotations(release, "redis")["checksum/config"] for release in (first, again)]
    assert config[0] == config[1] != annotations(resized, "redis")["checksum/config"]


def annotations(release: Release, role: str) -> dict[str, str]:
    found: dict[str, str] = release.workload(role)["spec"]["template"]["metadata"]["annotations"]
    return found


def test_a_role_s_own_settings_win_even_when_they_are_zero_or_false() -> None:
    values = {
        "settings": {"prefixCache": True, "engineSilenceS": 4, "drainS": 5},
        "decode": {"settings": {"prefixCache": False, "engineSilenceS": 0}},
    }
    release = render(values)
    found = {
        role: process_rules.settings_of(container_of(release, role))
        for role in ("prefill", "decode")
    }
    told = {role: (s.engine.prefix_cache, s.engine.silence_s) for role, s in found.items()}
    assert told == {"prefill": (True, 4), "decode": (False, 0)}


def test_large_numbers_are_written_in_full(releases: dict[str, Release]) -> None:
    gateway = process_rules.settings_of(container_of(releases["everything"], "gateway"))
    assert gateway.limits.max_live_requests == 2_000_000
    prefill = process_rules.settings_of(container_of(releases["pd-rdma"], "prefill"))
    assert prefill.limits.max_body_bytes == 8_388_608


def test_recreate_takes_no_limits_of_a_rolling_update(releases: dict[str, Release]) -> None:
    decode = releases["external-redis-secret"].workload("decode")
    assert decode["spec"]["strategy"] == {"type": "Recreate"}


GIVEN_BY_SCRAPES = {"namespace", "pod", "deployment"}
"""labels that targets of a monitor, or of kube-state-metrics, have"""


def unknown_in(query: str) -> set[str]:
    """Metrics and labels of a query that the gateway does not export."""
    load = Load(1, 0, 0, 0, 4, 4, 0, 0)
    facts = partial(GatewayFacts, worker_totals={"loop_failures:beat": 1})
    metrics = GatewayMetrics(lambda: [WorkerSample("d", "decode", load, {}, {})], facts)
    exported = set(re.findall(r"\bbaton_\w+|(?<=[{,])\w+(?==)", metrics.text().decode()))
    named = set(re.findall(r"\bbaton_\w+|(?<=[{,])\w+(?==)|(?<=by \()\w+", query))
    return named - exported - GIVEN_BY_SCRAPES


def test_autoscalers_and_rules_ask_for_metrics_that_exist(releases: dict[str, Release]) -> None:
    queries = [
        item["spec"]["triggers"][0]["metadata"]["query"]
        for item in releases["keda"].of_kind("ScaledObject")
    ]
    assert len(queries) == 3
    (rules,) = releases["everything"].of_kind("PrometheusRule")
    queries += [rule["expr"] for group in rules["spec"]["groups"] for rule in group["rules"]]
    assert {query: unknown_in(query) for query in queries if unknown_in(query)} == {}
    assert unknown_in('sum(max by (node) (baton_queued{role="x",kind="y"}))') == {
        "baton_queued",
        "kind",
        "node",
    }


def test_a_new_chart_alone_restarts_nothing(releases: dict[str, Release]) -> None:
    for _, pod in releases["default"].pods():
        if pod.get("kind") != "Pod":
            assert not {"helm.sh/chart", "app.kubernetes.io/version"} & set(
                pod["metadata"]["labels"]
            )
