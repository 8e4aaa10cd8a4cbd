"""Metrics of several models in one exposition: nothing is lost, added up or told twice."""

from collections import Counter

from prometheus_client.parser import text_string_to_metric_families

from shared.telemetry.by_model import text_by_model
from shared.telemetry.metrics import GatewayFacts, GatewayMetrics


def metrics_of(num_running: int, ttft_s: float) -> GatewayMetrics:
    metrics = GatewayMetrics(list, lambda: GatewayFacts(num_running=num_running))
    metrics.ttft.observe(ttft_s)
    return metrics


def samples(text: bytes) -> list[tuple[str, dict[str, str], float]]:
    families = list(text_string_to_metric_families(text.decode()))
    names = Counter(family.name for family in families)
    assert set(names.values()) == {1}, names
    return [
        (sample.name, sample.labels, sample.value)
        for family in families
        for sample in family.samples
    ]


def test_one_model_is_told_without_a_label() -> None:
    one = metrics_of(3, 0.1)
    assert text_by_model({"demo": one.registry}).splitlines()[0] == one.text().splitlines()[0]
    assert ("baton_num_requests_running", {}, 3.0) in samples(text_by_model({"demo": one.registry}))


def test_every_sample_of_ours_has_its_model_and_the_process_is_told_once() -> None:
    a, b = metrics_of(3, 0.1), metrics_of(4, 5.0)
    told = samples(text_by_model({"a": a.registry, "b": b.registry}))
    running = [each for each in told if each[0] == "baton_num_requests_running"]
    assert running == [
        ("baton_num_requests_running", {"model": "a"}, 3.0),
        ("baton_num_requests_running", {"model": "b"}, 4.0),
    ]
    sums = {
        labels["model"]: value
        for name, labels, value in told
        if name == "baton_time_to_first_token_seconds_sum"
    }
    assert sums == {"a": 0.1, "b": 5.0}
    ours = Counter(labels.get("model") for name, labels, _ in told if name.startswith("baton_"))
    alone = sum(name.startswith("baton_") for name, _, _ in samples(a.text()))
    assert ours == {"a": alone, "b": alone}
    cpu = [labels for name, labels, _ in told if name == "process_cpu_seconds_total"]
    assert cpu == [{}]
