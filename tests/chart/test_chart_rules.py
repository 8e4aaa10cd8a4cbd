"""The chart's PrometheusRule, judged by Prometheus: records add several gateways up right, an
alert fires for what it is meant for and for nothing else."""

import copy
import re
from functools import cache
from typing import Any

import pytest

from services.gateway.owner.upkeep import BEAT_LOOP
from shared.telemetry.metrics import ATTEMPT_REASONS
from tests.chart.promtool import Result, contradicted
from tests.chart.release import render

pytestmark = pytest.mark.needs_promtool

A = 'namespace="ns",pod="rel-baton-gateway-7c9f-a1b2c"'
B = 'namespace="ns",pod="rel-baton-gateway-7c9f-d3e4f"'
OTHER = 'namespace="ns",pod="rel2-baton-gateway-7c9f-a1b2c"'
READY = 'kube_deployment_status_replicas_ready{namespace="ns",deployment="rel-baton-gateway"}'
OURS = 'namespace="ns",release="rel-baton"'
FIRING = 'count by (alertname) (ALERTS{alertstate="firing"})'
Rules = dict[str, Any]
Series = dict[str, str]


@cache
def rules() -> Rules:
    (found,) = render({"monitoring": {"rules": {"enabled": True}}}).of_kind("PrometheusRule")
    spec: Rules = found["spec"]
    return spec


def every_rule() -> list[dict[str, Any]]:
    return [rule for group in rules()["groups"] for rule in group["rules"]]


def told(target: str, values: Series) -> Series:
    """Series of one target: `name{labels}` without the target's own labels -> values."""
    return {
        re.sub(r"\{|$", f"{{{target}," if "{" in name else f"{{{target}}}", name, count=1): text
        for name, text in values.items()
    }


def fast(num_fast: int, num_all: int) -> Series:
    """First tokens of each scrape: `num_fast` within 0.1 s, the rest within 1 s."""
    per_bucket = {"0.1": num_fast, "1": num_all, "+Inf": num_all}
    name = "baton_time_to_first_token_seconds_bucket"
    return {f'{name}{{le="{le}"}}': f"0+{num}x60" for le, num in per_bucket.items()}


SAMPLED = 'baton_worker_tokens_sampled_total{worker="d1",role="decode"}'
QUEUED = 'baton_worker_queued_tokens{worker="p1",role="prefill"}'
TWO_GATEWAYS = {
    **told(A, {**fast(30, 30), SAMPLED: "0+150x60", QUEUED: "100+0x60"}),
    **told(B, {**fast(0, 10), SAMPLED: "0+150x60", QUEUED: "120+0x60"}),
    **told(OTHER, {**fast(0, 1000), SAMPLED: "0+9999x60", QUEUED: "9999+0x60"}),
    **told(A, {"baton_generation_tokens_total": "0+150x60"}),
    **told(B, {"baton_generation_tokens_total": "0+300x60"}),
    **told(OTHER, {"baton_generation_tokens_total": "0+9999x60"}),
    **told(A, {"baton_num_requests_running": "3+0x60", "baton_num_requests_waiting": "1+0x60"}),
    **told(B, {"baton_num_requests_running": "4+0x60", "baton_num_requests_waiting": "2+0x60"}),
    **told(OTHER, {"baton_num_requests_running": "9+0x60"}),
}
RECORDS = {
    # 30 of 40 first tokens within 0.1 s: the 20th there, the 39.6th of 40 between 0.1 and 1 s.
    "release:baton_time_to_first_token_seconds:p50": ("", 0.1 * 20 / 30),
    "release:baton_time_to_first_token_seconds:p99": ("", 0.1 + 0.9 * 9.6 / 10),
    "release:baton_generation_tokens:rate5m": ("", 30),
    "release:baton_tokens_sampled:rate5m": ("", 10),
    "release:baton_num_requests_running:sum": ("", 7),
    "release:baton_num_requests_waiting:sum": ("", 3),
    "release:baton_worker_queued_tokens:sum": (',role="prefill"', 120),
}


def records_against(spec: Rules, *names: str) -> str:
    """In whole millionths: promtool compares every digit."""
    results = [
        Result(f"round({name} * 1e6)", 10, {f"{{{OURS}{labels}}}": round(value * 1e6)})
        for name, (labels, value) in RECORDS.items()
        if not names or name in names
    ]
    return contradicted(TWO_GATEWAYS, results, spec)


def test_records_add_two_gateways_up_right() -> None:
    assert {rule["record"] for rule in every_rule() if "record" in rule} == set(RECORDS)
    assert records_against(rules()) == ""


@pytest.mark.parametrize(
    ("name", "pattern", "new"),
    [
        ("release:baton_time_to_first_token_seconds:p50", r"sum by", "max by"),
        ("release:baton_time_to_first_token_seconds:p99", r"-baton-gateway", ".*"),
        ("release:baton_generation_tokens:rate5m", r"^sum", "max"),
        ("release:baton_tokens_sampled:rate5m", r"max by \(worker\)", ""),
        ("release:baton_num_requests_running:sum", r"^sum", "avg"),
        ("release:baton_num_requests_waiting:sum", r"waiting", "running"),
        ("release:baton_worker_queued_tokens:sum", r"max by", "sum by"),
    ],
)
def test_a_wrong_record_is_found(name: str, pattern: str, new: str) -> None:
    assert "exp:" in records_against(changed("record", name, pattern, new), name)


def changed(kind: str, name: str, pattern: str, new: str) -> Rules:
    """The rules with one expression changed."""
    spec = copy.deepcopy(rules())
    (rule,) = (r for g in spec["groups"] for r in g["rules"] if r.get(kind) == name)
    rule["expr"], changes = re.subn(pattern, new, rule["expr"])
    assert changes
    return spec


def in_peace(target: str) -> Series:
    """A gateway that serves 40 requests a scrape; a hand-over fails now and then."""
    lost = {f'baton_attempts_total{{reason="{why}"}}': "0+0x120" for why in ATTEMPT_REASONS}
    return told(
        target,
        {
            "up": "1+0x120",
            "baton_num_requests_waiting": "5+0x120",
            "baton_serves": "1+0x120",
            "baton_time_to_first_token_seconds_count": "0+40x120",
            f'baton_loop_failures_total{{loop="{BEAT_LOOP}"}}': "3+0x120",
            'baton_loop_failures_total{loop="dial"}': "0+9x120",
            **lost,
            'baton_attempts_total{reason="first"}': "0+40x120",
            'baton_attempts_total{reason="handback_draining"}': "0+1x120",
            'baton_attempts_total{reason="source_lost"}': "0+0x23 1+0x15 2+0x80",
        },
    )


PEACE = in_peace(A) | in_peace(B) | {READY: "2+0x120"}


def attempts(why: str) -> str:
    return f'baton_attempts_total{{{A},reason="{why}"}}'


EVENTS: dict[str, tuple[Series, str]] = {
    "peace": (PEACE, ""),
    "no kube-state-metrics": (in_peace(A), ""),
    "idle": (
        in_peace(A)
        | told(
            A,
            {
                "baton_num_requests_waiting": "0+0x120",
                "baton_time_to_first_token_seconds_count": "0+0x120",
            },
        ),
        "",
    ),
    "another release is gone": (PEACE | told(OTHER, {"up": "0+0x120"}), ""),
    "one gateway is gone": (PEACE | told(A, {"up": "1+0x20 0+0x120"}), ""),
    "a rollout": (PEACE | {READY: "2+0x20 0+0x4 2+0x120"}, ""),
    "every gateway is gone": (
        PEACE | told(A, {"up": "1+0x20 0+0x120"}) | told(B, {"up": "1+0x20 stale"}),
        "BatonNoGateway",
    ),
    "no gateway is ready": (PEACE | {READY: "2+0x20 0+0x120"}, "BatonNoGateway"),
    "no worker is there": (
        PEACE | told(A, {"baton_serves": "1+0x20 0+0x120"}) | told(B, {"baton_serves": "0+0x120"}),
        "BatonNoWorker",
    ),
    "one gateway has no worker": (PEACE | told(A, {"baton_serves": "0+0x120"}), ""),
    "the only worker is replaced": (
        PEACE
        | told(A, {"baton_serves": "1+0x40 0+0x3 1+0x120"})
        | told(B, {"baton_serves": "1+0x40 0+0x3 1+0x120"}),
        "",
    ),
    "nobody is served": (
        PEACE
        | told(A, {"baton_time_to_first_token_seconds_count": "0+40x20 800+0x120"})
        | told(B, {"baton_time_to_first_token_seconds_count": "0+40x20 800+0x120"}),
        "BatonNothingServed",
    ),
    "one gateway serves nobody": (
        PEACE | told(A, {"baton_time_to_first_token_seconds_count": "0+40x20 800+0x120"}),
        "",
    ),
    "Redis is away for a gateway": (
        PEACE | told(B, {f'baton_loop_failures_total{{loop="{BEAT_LOOP}"}}': "0+0x20 0+10x120"}),
        "BatonRedisAway",
    ),
    "Redis is replaced": (
        PEACE | told(B, {f'baton_loop_failures_total{{loop="{BEAT_LOOP}"}}': "0+0x35 5+0x120"}),
        "",
    ),
    "a worker is gone": (PEACE | {attempts("link_lost"): "0+0x40 4+0x120"}, "BatonWorkerLost"),
    "an engine is killed": (
        PEACE | {attempts("handback_killed"): "0+0x40 4+0x120"},
        "BatonWorkerLost",
    ),
    "a worker is silent": (PEACE | {attempts("stalled"): "0+0x40 1+0x120"}, "BatonWorkerLost"),
    "hand-overs break": (PEACE | {attempts("kv_transfer"): "0+1x120"}, "BatonHandoversFail"),
}
AT_MINUTE = 12


def alerts_against(spec: Rules, event: str) -> str:
    """At minute 12 exactly the one alert fires that is meant for the event, or none."""
    series, alert = EVENTS[event]
    wanted = {f'{{alertname="{alert}"}}': 1} if alert else {}
    return contradicted(series, [Result(FIRING, AT_MINUTE, wanted)], spec)


@pytest.mark.parametrize("event", EVENTS)
def test_an_alert_fires_for_its_event_alone(event: str) -> None:
    assert alerts_against(rules(), event) == ""


def test_every_alert_has_an_event() -> None:
    alerts = {rule["alert"] for rule in every_rule() if "alert" in rule}
    assert alerts == {alert for _, alert in EVENTS.values()} - {""}


@pytest.mark.parametrize(
    ("alert", "pattern", "new", "event"),
    [
        ("BatonNoGateway", r"absent", "sum", "peace"),
        ("BatonNoGateway", r"^.* or ", "", "every gateway is gone"),
        ("BatonNoGateway", r" or .*", "", "no gateway is ready"),
        ("BatonNoGateway", r"max\(absent\((.*) == 1\)\)", r"min(\1) == 0", "one gateway is gone"),
        ("BatonNoWorker", r"^max", "min", "one gateway has no worker"),
        ("BatonNothingServed", r"^.* and ", "", "idle"),
        ("BatonNothingServed", r"and sum", "and min", "one gateway serves nobody"),
        ("BatonNothingServed", r"> 0 and .*", "> 0", "peace"),
        ("BatonRedisAway", r',loop="beat"', "", "peace"),
        ("BatonRedisAway", r"1m", "5m", "Redis is replaced"),
        ("BatonRedisAway", r"^max", "min", "Redis is away for a gateway"),
        ("BatonWorkerLost", r"\|stalled", "", "a worker is silent"),
        ("BatonWorkerLost", r"\|handback_killed", "", "an engine is killed"),
        ("BatonWorkerLost", r"link_lost", "", "a worker is gone"),
        ("BatonWorkerLost", r"link_lost.*killed", ".*", "peace"),
        ("BatonHandoversFail", r"0\.01", "0", "peace"),
        ("BatonHandoversFail", r"kv_transfer\|", "", "hand-overs break"),
    ],
)
def test_a_wrong_alert_is_found(alert: str, pattern: str, new: str, event: str) -> None:
    assert "exp:" in alerts_against(changed("alert", alert, pattern, new), event)


def test_alerts_name_loops_and_reasons_that_exist() -> None:
    text = " ".join(rule["expr"] for rule in every_rule())
    reasons = {one for found in re.findall(r'reason=~?"([^"]+)"', text) for one in found.split("|")}
    assert reasons == set(ATTEMPT_REASONS)
    assert set(re.findall(r'loop="(\w+)"', text)) == {BEAT_LOOP}
