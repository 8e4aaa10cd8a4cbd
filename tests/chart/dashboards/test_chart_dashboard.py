"""The chart's dashboard: Prometheus takes every query, every metric in it is exported by Baton or
recorded by the chart, and several gateways add up right."""

import json
import re
from collections.abc import Mapping
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, cast

import helm_python
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from services.autoscaler.autoscaler import Told
from services.autoscaler.metrics import AutoscalerCollector
from shared.protocol import Load
from shared.telemetry.metrics import GatewayFacts, GatewayMetrics
from shared.telemetry.worker_metrics import COUNTERS, GAUGES, STAGES, WorkerSample
from tests.chart.promtool import Result, contradicted
from tests.chart.release import CHART, render
from tests.chart.value_sets import DASHBOARD

DASHBOARDS = CHART / "files/dashboards"
ROWS = [
    "Users",
    "Stages",
    "Prefill pool",
    "Hand-over",
    "Decode pool",
    "Devices",
    "Trouble",
    "Gateways",
]
VARIABLES = {"$namespace": "ns", "${release}": "rel-baton", "$release": "rel-baton"}
GIVEN = {"namespace", "pod", "release"}
"""labels that monitors or the chart's records give"""
GATEWAY = re.compile(r'namespace="ns",pod=~"rel-baton-gateway-\[\^-\]\+\(-\[\^-\]\+\)\?"')
AUTOSCALER = re.compile(GATEWAY.pattern.replace("gateway", "autoscaler"))
FUNCTIONS = {"histogram_quantile", "increase", "max", "rate", "sum"}
OWN_TOTALS = {"loop_failures", "redis_errors", "log_lines_dropped"}
"""counters that hold the gateway's own failures besides the workers'"""


@cache
def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DASHBOARDS / "baton.json").read_text(encoding="utf-8"))
    return found


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def filled(text: str) -> str:
    """As Grafana sends it, for one release."""
    for name, value in VARIABLES.items():
        text = text.replace(name, value)
    assert "$" not in text
    return text


def queries() -> list[str]:
    return [filled(target["expr"]) for panel in panels() for target in panel["targets"]]


@cache
def exported() -> Mapping[str, set[str]]:
    """Every metric that a gateway or the autoscaler shows -> its labels."""
    load = Load(1, 0, 0, 0, 4, 4, 0, 0)
    counters = {f"{name}:x" if label else name: 1 for name, (label, _) in COUNTERS.items()}
    gauges = {f"{name}:x" if label else name: 1.0 for name, (label, _) in GAUGES.items()}
    samples = [
        WorkerSample(role, role, load, counters, dict.fromkeys(stages, 1), gauges)
        for role, stages in STAGES.items()
    ]
    facts = partial(GatewayFacts, worker_totals=counters, ignored_fields={"x": 1})
    gateway = GatewayMetrics(lambda: samples, facts)
    gateway.failures.labels("x").inc()
    roles = {role: SimpleNamespace(replicas=1, drain=()) for role in STAGES}
    told = SimpleNamespace(
        decision=SimpleNamespace(roles=roles, holds=""),
        view=SimpleNamespace(roles=roles),
        wanted=dict.fromkeys(roles, 1),
        acts=True,
    )
    registry = CollectorRegistry()
    registry.register(
        AutoscalerCollector(lambda: cast("Told", told), lambda: {"orders:prefill:up": 1})
    )
    found: dict[str, set[str]] = {}
    for text in (gateway.text().decode(), generate_latest(registry).decode()):
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
    return found


@cache
def recorded() -> Mapping[str, set[str]]:
    """What the chart's rules record -> its labels."""
    (rules,) = render({"monitoring": {"rules": {"enabled": True}}}).of_kind("PrometheusRule")
    return {
        rule["record"]: {*rule["labels"], *re.findall(r"sum by \((\w+)\)", rule["expr"])} - {"le"}
        for group in rules["spec"]["groups"]
        for rule in group["rules"]
        if "record" in rule
    }


def problems(query: str) -> list[str]:
    """Metrics, and labels, that nobody gives; selectors of other releases too."""
    found: list[str] = []
    known = {**exported(), **recorded()}
    for name, selector in re.findall(r"([a-zA-Z_:][\w:]*)\{(.*?)\}", query):
        if name not in known:
            found.append(name)
            continue
        labels = set(re.findall(r'(\w+)(?:=~|!=|=)"', selector)) - GIVEN
        found += sorted(labels - known[name])
        by = {one for text in re.findall(r"by \(([^)]*)\)", query) for one in text.split(", ")}
        found += sorted(by - known[name] - GIVEN)
        if name in recorded():
            is_ours = 'namespace="ns",release="rel-baton"' in selector
        else:
            of = AUTOSCALER if name.startswith("baton_autoscaler") else GATEWAY
            is_ours = bool(of.match(selector))
        if not is_ours:
            found.append(f"of any release: {selector}")
    bare = re.sub(r"[\w:]+\{.*?\}|by \(.*?\)|\[\w+\]", "", query)
    found += sorted(set(re.findall(r"[a-zA-Z_:][\w:]*", bare)) - FUNCTIONS)
    return found


def wrongly_added(query: str) -> list[str]:
    """Every gateway tells of every worker: what it tells counts once. What it holds of all
    workers together cannot be added up at all."""
    found = []
    for name in re.findall(r"(baton_\w+)\{", query):
        bare = name.removeprefix("baton_").removesuffix("_total")
        if "worker" in exported().get(name, ()):
            if not re.search(rf"max by \(worker[^)]*\) \((?:rate\()?{name}\{{", query):
                found.append(name)
        elif bare in COUNTERS and not (
            bare in OWN_TOTALS and re.search(rf"max by \(\w+\) \(increase\({name}\{{", query)
        ):
            found.append(name)
    return found


def test_rows_are_those_of_an_operator_s_questions() -> None:
    rows = [panel["title"] for panel in dashboard()["panels"] if panel["type"] == "row"]
    assert rows == [*ROWS, "Autoscaler"]
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in panels():
        assert panel["title"] and panel["description"] and panel["targets"]
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}
    places = [panel["gridPos"] for panel in dashboard()["panels"]]
    cells = [(x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in rows_of(p)]
    assert len(set(cells)) == len(cells), "two panels lie on each other"


def rows_of(place: dict[str, int]) -> range:
    return range(place["y"], place["y"] + place["h"])


def test_every_metric_and_label_is_one_that_somebody_gives() -> None:
    assert len(queries()) > 50
    assert {query: found for query in queries() if (found := problems(query))} == {}
    used = set(re.findall(r"release:[\w:]+", " ".join(queries())))
    assert used == set(recorded()), "records are made to be shown"


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("sum(baton_gone{})", "baton_gone"),
        ("release:baton_gone:sum{}", "release:baton_gone:sum"),
        ('sum(baton_requests_total{state="x"})', "state"),
        ('sum by (node) (baton_requests_total{outcome="x"})', "node"),
        ("sum(baton_requests_total{})", "of any release: "),
        ("sum(baton_requests_total)", "baton_requests_total"),
        ("up * baton_requests_total{}", "up"),
    ],
)
def test_a_query_of_nothing_is_found(query: str, found: str) -> None:
    assert found in problems(query)


def test_no_query_counts_a_worker_once_per_gateway() -> None:
    assert {query: found for query in queries() if (found := wrongly_added(query))} == {}


@pytest.mark.parametrize(
    "query",
    [
        "sum(baton_worker_running{})",
        "max by (role) (baton_kv_cache_usage_perc{})",
        "sum by (worker) (rate(baton_worker_kv_transfer_bytes_total{}[5m]))",
        "sum(rate(baton_kv_transfer_bytes_total{}[5m]))",
        "sum(increase(baton_loop_failures_total{}[5m]))",
    ],
)
def test_a_query_that_adds_up_wrongly_is_found(query: str) -> None:
    assert wrongly_added(query)


def as_rules(exprs: list[str]) -> dict[str, Any]:
    rules = [{"record": f"panel:{i}", "expr": expr} for i, expr in enumerate(exprs)]
    return {"groups": [{"name": "panels", "rules": rules}]}


@pytest.mark.needs_promtool
def test_prometheus_takes_every_query() -> None:
    assert contradicted({}, [], as_rules(queries())) == ""
    assert "parse error" in contradicted({}, [], as_rules([*queries(), "sum(x{}[5m])) by"]))


A = 'namespace="ns",pod="rel-baton-gateway-7c9f-a1b2c"'
B = 'namespace="ns",pod="rel-baton-gateway-7c9f-d3e4f"'
OTHER = 'namespace="ns",pod="rel2-baton-gateway-7c9f-a1b2c"'
BYTES = 'baton_worker_kv_transfer_bytes_total{%s,worker="d1",role="decode",transport="mapped"}'
USAGE = 'baton_kv_cache_usage_perc{%s,worker="d1",role="decode"}'
LOST = 'baton_attempts_total{%s,reason="link_lost"}'
SERIES = {
    BYTES % A: "0+1500x60",
    BYTES % B: "700+1500x60",
    BYTES % OTHER: "0+9999x60",
    USAGE % A: "0.5+0x60",
    USAGE % B: "0.75+0x60",
    USAGE % OTHER: "1+0x60",
    LOST % A: "0+15x60",
    LOST % B: "0+30x60",
    LOST % OTHER: "0+999x60",
}
SHOWN: dict[str, dict[str, float]] = {
    "KV received": {'{transport="mapped"}': 100},
    "KV blocks in use": {'{worker="d1"}': 0.75},
    "Attempts begun again": {'{reason="link_lost"}': 3},
}


def shown_against(wanted: Mapping[str, Mapping[str, float]]) -> str:
    """What Prometheus says against the values of panels; of several with one title, the last."""
    exprs = {panel["title"]: filled(panel["targets"][0]["expr"]) for panel in panels()}
    results = [Result(exprs[title], 10, values) for title, values in wanted.items()]
    return contradicted(SERIES, results)


@pytest.mark.needs_promtool
def test_two_gateways_that_tell_of_one_worker_show_it_once() -> None:
    assert shown_against(SHOWN) == ""
    for title, values in SHOWN.items():
        twice = {labels: 2 * value for labels, value in values.items()}
        assert "exp:" in shown_against({title: twice})


def test_it_is_a_config_map_for_grafana_s_sidecar_where_it_is_asked_for() -> None:
    release = render(DASHBOARD)
    found = release.named("ConfigMap", "rel-baton-dashboard")
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert found["metadata"]["annotations"] == {"grafana_folder": "LLM"}
    assert json.loads(found["data"]["baton.json"]) == dashboard()
    names = [o["metadata"]["name"] for o in render({}).of_kind("ConfigMap")]
    assert "rel-baton-dashboard" not in names
    with pytest.raises(helm_python.HelmRenderError) as refused:
        render({"monitoring": {"dashboard": {"enabled": True}}})
    assert "its panels read the records of monitoring.rules" in str(refused.value)


def test_the_variables_find_releases_by_their_gateways() -> None:
    found = {item["name"]: item for item in dashboard()["templating"]["list"]}
    assert set(found) == {"datasource", "namespace", "release"}
    pattern = found["release"]["regex"].strip("/")
    for pod, release in (
        ("rel-baton-gateway-7c9f-a1b2c", "rel-baton"),
        ("llm-gateway-7c9f-a1b2c", "llm"),
        ("r" * 45 + "-gateway-1234a1b2c", "r" * 45),
    ):
        match = re.match(pattern, pod)
        assert match is not None and match[1] == release


def test_the_autoscaler_is_scraped_too_where_it_runs() -> None:
    release = render(DASHBOARD)
    for kind in ("ServiceMonitor", "PodMonitor"):
        names = [item["metadata"]["name"] for item in release.of_kind(kind)]
        assert names == ["rel-baton-autoscaler", "rel-baton-gateway"]
    policy = release.named("NetworkPolicy", "rel-baton-autoscaler")["spec"]
    assert policy["ingress"] == [{"ports": [{"port": 8080, "protocol": "TCP"}]}]
    named = render({**DASHBOARD, "networkPolicy": {"scrapers": [{"podSelector": {}}]}})
    (rule,) = named.named("NetworkPolicy", "rel-baton-autoscaler")["spec"]["ingress"]
    assert rule["from"] == [{"podSelector": {}}]
