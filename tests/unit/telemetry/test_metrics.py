"""What `/metrics` says: well-formed, from the start, and never going backwards."""

import re

from prometheus_client.parser import text_string_to_metric_families

from shared.engine.counters import EngineCounters
from shared.protocol import Load
from shared.telemetry.metrics import ATTEMPT_REASONS, GatewayFacts, GatewayMetrics
from shared.telemetry.worker_metrics import COUNTERS, WorkerSample

LOAD = Load(512, 7, 2, 1, 100, 60, 30, 10, step_error=0.04)
DECODE = WorkerSample(
    "decode-0",
    "decode",
    LOAD,
    {
        "local_prefill_tokens:slow_link": 4,
        "kv_transfer_bytes:tcp": 640,
        "preemptions": 3,
        "odd:": 1,
    },
    {"transfer": 2},
    {"padding_ratio": 0.25, "memory_bytes:kv": 4096.0, "memory_bytes": 7.0, "odd": 1.0},
)


def samples(metrics: GatewayMetrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(metrics.text().decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_the_text_parses_and_names_have_no_colon_and_a_help() -> None:
    families = list(
        text_string_to_metric_families(GatewayMetrics(lambda: [DECODE]).text().decode())
    )
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"(baton|process|python)_[a-z0-9_]+", name) for name in names)
    assert all(family.documentation for family in families)


def test_zeros_are_there_before_any_worker() -> None:
    found = samples(GatewayMetrics(list))
    for reason in ("agg", "no_prefill_worker", "no_pair", "slow_link"):
        assert found["baton_local_prefill_tokens_total", (("reason", reason),)] == 0
    for source in ("computed", "cached", "transferred"):
        assert found["baton_prompt_tokens_total", (("source", source),)] == 0
    for outcome in ("done", "failed", "cancelled"):
        assert found["baton_requests_total", (("outcome", outcome),)] == 0
    assert found["baton_preemptions_total", ()] == 0
    for reason in ATTEMPT_REASONS:
        assert found["baton_attempts_total", (("reason", reason),)] == 0


def test_a_workers_words_get_its_name_and_role() -> None:
    found = samples(GatewayMetrics(lambda: [DECODE]))
    who = (("role", "decode"), ("worker", "decode-0"))
    retry = (("reason", "slow_link"), *who)
    assert found["baton_worker_local_prefill_tokens_total", retry] == 4
    bytes_key = ("baton_worker_kv_transfer_bytes_total", (who[0], ("transport", "tcp"), who[1]))
    assert found[bytes_key] == 640
    assert found["baton_blocks", (who[0], ("state", "cached"), who[1])] == 30
    assert found["baton_kv_cache_usage_perc", who] == 0.1
    assert found["baton_step_time_error", who] == 0.04
    assert found["baton_worker_requests", (who[0], ("stage", "transfer"), who[1])] == 2
    assert found["baton_worker_requests", (who[0], ("stage", "decode"), who[1])] == 0
    assert found["baton_padding_ratio", who] == 0.25
    assert found["baton_memory_bytes", (("kind", "kv"), *who)] == 4096


def test_totals_of_the_pool_are_independent_of_who_is_linked() -> None:
    facts = GatewayFacts(num_running=5, num_waiting=2, worker_totals={"kv_transfer_bytes:tcp": 9})
    found = samples(GatewayMetrics(list, lambda: facts))
    assert found["baton_kv_transfer_bytes_total", (("transport", "tcp"),)] == 9
    assert (found["baton_num_requests_running", ()], found["baton_num_requests_waiting", ()]) == (
        5,
        2,
    )


def test_every_counter_of_an_engine_has_a_metric() -> None:
    for key in EngineCounters().totals():
        name, _, value = key.partition(":")
        assert bool(COUNTERS[name][0]) == bool(value), key
