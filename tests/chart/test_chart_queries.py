"""The autoscalers' queries, as the chart renders them, judged by Prometheus: every worker counts
once, nobody else's counts, and silence is no result."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from services.gateway.owner.upkeep import BEAT_LOOP
from tests.chart.promtool import Result, Series, contradicted
from tests.chart.release import component, render
from tests.chart.value_sets import KEDA

pytestmark = pytest.mark.needs_promtool

GATEWAY_A, GATEWAY_B = "rel-baton-gateway-7c9f-a1b2c", "rel-baton-gateway-7c9f-d3e4f"
BEATS = f'baton_loop_failures_total{{namespace="ns",pod="{GATEWAY_A}",loop="{BEAT_LOOP}"}}'
"""failures: a gateway counts them while Redis is away"""
ALWAYS = "x40"
LOST_AFTER_2_MIN = "x8 stale"
Worker = tuple[str, str, int, float]
"""name, role, queued tokens, share of KV blocks in use"""
WORKERS: tuple[Worker, ...] = (
    ("p1", "prefill", 100, 0.125),
    ("p2", "prefill", 50, 0.125),
    ("d1", "decode", 7, 0.5),
    ("d2", "decode", 7, 0.25),
)
IDLE: tuple[Worker, ...] = (("p1", "prefill", 0, 0.0), ("d1", "decode", 0, 0.0))
OTHERS: tuple[Worker, ...] = (("p1", "prefill", 1000, 0.5), ("d9", "decode", 1000, 0.5))
ONE_RELEASE = {"prefill": 150.0, "decode": 0.75}


def told(
    pod: str, running: int, workers: tuple[Worker, ...], span: str = ALWAYS, namespace: str = "ns"
) -> dict[str, str]:
    """The series that one gateway's scrapes give."""
    target = f'namespace="{namespace}",pod="{pod}"'
    series = {f"baton_num_requests_running{{{target}}}": f"{running}+0{span}"}
    for worker, role, queued, usage in workers:
        labels = f'{{{target},worker="{worker}",role="{role}"}}'
        series[f"baton_worker_queued_tokens{labels}"] = f"{queued}+0{span}"
        series[f"baton_kv_cache_usage_perc{labels}"] = f"{usage}+0{span}"
    return series


@dataclass(frozen=True)
class Case:
    series: Series
    minute: float
    expected: Mapping[str, float]
    """by role; a role left out has no result"""
    release: str = "rel"


CASES = {
    "two gateways tell of the same workers": Case(
        told(GATEWAY_A, 10, WORKERS) | told(GATEWAY_B, 20, WORKERS),
        3,
        {"gateway": 30, **ONE_RELEASE},
    ),
    "others' releases": Case(
        told(GATEWAY_A, 10, WORKERS)
        | told("rel2-baton-gateway-7c9f-a1b2c", 100, OTHERS)
        | told("rel-baton-gateway-gateway-7c9f-a1b2c", 100, OTHERS)
        | told("my-rel-baton-gateway-7c9f-a1b2c", 100, OTHERS)
        | told(GATEWAY_A, 100, OTHERS, namespace="other"),
        3,
        {"gateway": 10, **ONE_RELEASE},
    ),
    "one of two gateways is just lost": Case(
        told(GATEWAY_A, 10, WORKERS, LOST_AFTER_2_MIN) | told(GATEWAY_B, 20, WORKERS),
        3,
        {"gateway": 30, **ONE_RELEASE},
    ),
    "one of two gateways is gone": Case(
        told(GATEWAY_A, 10, WORKERS, LOST_AFTER_2_MIN) | told(GATEWAY_B, 20, WORKERS),
        8,
        {"gateway": 20, **ONE_RELEASE},
    ),
    "the only gateway is just lost": Case(
        told(GATEWAY_A, 10, WORKERS, LOST_AFTER_2_MIN), 3, {"gateway": 10}
    ),
    "the only gateway is gone": Case(told(GATEWAY_A, 10, WORKERS, LOST_AFTER_2_MIN), 8, {}),
    "no gateway ever": Case(told("rel2-baton-gateway-7c9f-a1b2c", 5, OTHERS), 3, {}),
    "idle workers": Case(
        told(GATEWAY_A, 0, IDLE), 3, {"gateway": 0.0, "prefill": 0.0, "decode": 0.0}
    ),
    "no workers": Case(told(GATEWAY_A, 3, ()), 3, {"gateway": 3, "prefill": 0.0, "decode": 0.0}),
    "Redis was away for a while": Case(
        told(GATEWAY_A, 3, ()) | {BEATS: "0+0x4 9+0x40"},
        3,
        {"gateway": 3, "prefill": 0.0, "decode": 0.0},
    ),
    "new gateways, and no Redis to find workers by": Case(
        told(GATEWAY_A, 3, ()) | {BEATS: "0+3x40"}, 3, {"gateway": 3}
    ),
    "no Redis": Case(
        told(GATEWAY_A, 10, WORKERS) | {BEATS: "0+3x40"}, 3, {"gateway": 10, **ONE_RELEASE}
    ),
    "a pod whose name was cut": Case(
        told("r" * 45 + "-gateway-1234" + "a1b2c", 10, WORKERS),
        3,
        {"gateway": 10, **ONE_RELEASE},
        release="r" * 53,
    ),
}


def queries(release: str) -> dict[str, str]:
    """The chart's own, by role."""
    return {
        component(item): item["spec"]["triggers"][0]["metadata"]["query"]
        for item in render(KEDA, name=release).of_kind("ScaledObject")
    }


def against(case: Case, found: Mapping[str, str]) -> str:
    """What Prometheus says against queries by role."""
    results = [
        Result(query, case.minute, {"{}": case.expected[role]} if role in case.expected else {})
        for role, query in found.items()
    ]
    return contradicted(case.series, results)


@pytest.mark.parametrize("name", CASES)
def test_a_pool_is_measured_right(name: str) -> None:
    found = queries(CASES[name].release)
    assert set(found) == {"gateway", "prefill", "decode"}
    assert against(CASES[name], found) == ""


WRONG = [
    ("gateway", r"^sum", "max", "two gateways tell of the same workers"),
    ("gateway", r'namespace="ns",', "", "others' releases"),
    ("gateway", r'-gateway-.*"', '-gateway-.+"', "others' releases"),
    ("gateway", r"last_over_time\((.*)\[5m\]\)", r"\1", "one of two gateways is just lost"),
    ("gateway", r"5m", "1h", "one of two gateways is gone"),
    ("gateway", r"5m", "1h", "the only gateway is gone"),
    ("gateway", r"$", " or vector(0)", "the only gateway is gone"),
    ("gateway", r"$", " or vector(0)", "no gateway ever"),
    ("gateway", r"\(-\[\^-\]\+\)\?", "-[^-]+", "a pod whose name was cut"),
    *(
        (role, pattern, new, case)
        for role in ("prefill", "decode")
        for pattern, new, case in (
            (r"max by \(worker\)", "", "two gateways tell of the same workers"),
            (f',role="{role}"', "", "two gateways tell of the same workers"),
            (r'namespace="ns",', "", "others' releases"),
            (r'-gateway-[^"]*"', '-gateway-.+"', "others' releases"),
            (r"or .*", "or vector(0)", "the only gateway is just lost"),
            (r"or .*", "or vector(0)", "no gateway ever"),
            (r" or .*", "", "no workers"),
            (r" unless .*", ")", "new gateways, and no Redis to find workers by"),
            (r" > 0", "", "Redis was away for a while"),
        )
    ),
]


@pytest.mark.parametrize(("role", "pattern", "new", "name"), WRONG)
def test_a_wrong_query_is_found(role: str, pattern: str, new: str, name: str) -> None:
    case = CASES[name]
    wrong, changes = re.subn(pattern, new, queries(case.release)[role])
    assert changes
    said = against(case, {role: wrong})
    assert "exp:" in said, said
