"""Where a request's time went: one trace from HTTP to release, and a receipt that adds up.

Real processes, and a collector on loopback that keeps what they export.
"""

import os
import signal
import socket
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from shared.telemetry import attributes as names
from tests.e2e.cluster import Cluster, running
from tests.support.fakes.otlp_receiver import ReceivedSpan, Receiver, receiving
from tests.support.measured import Measured

pytestmark = [pytest.mark.alone, pytest.mark.clock]

STAGES = ("queue", "prefill", "handover", "decode")
PLANTED = {
    "prefill": ("prefill", 200),
    "transport": ("handover", 400),
    "decode": ("decode", 800),
}
"""place: stage, milliseconds"""
TOLERANCE_MS = 30
CLIENT_TRACE, CLIENT_SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@dataclass
class Traced:
    """A running 1P1D and the collector its spans go to."""

    cluster: Cluster
    receiver: Receiver
    num_handed_over: int = 0

    def ask(self, prompt: str, max_tokens: int, traceparent: str = "") -> str:
        self.num_handed_over += max_tokens > 1
        return ask(self.cluster, prompt, max_tokens, traceparent)


def ask(cluster: Cluster, prompt: str, max_tokens: int, traceparent: str = "") -> str:
    """One whole answer of `max_tokens` tokens; the request's id."""
    body = {"model": cluster.model(), "prompt": prompt, "max_tokens": max_tokens}
    body["ignore_eos"] = True
    headers = {"traceparent": traceparent} if traceparent else {}
    response = cluster.client.post("/v1/completions", json=body, headers=headers)
    assert response.status_code == 200, response.text
    return str(response.headers["x-request-id"])


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    folder = tmp_path_factory.mktemp("traced")
    with (
        receiving() as receiver,
        running(folder, BATON_OTLP_ENDPOINT=receiver.url) as cluster,
    ):
        yield Traced(cluster, receiver)


def path_of(cluster: Cluster, rid: str) -> dict[str, float]:
    """The critical path, shown to add up and to leave little to `other`."""
    path: dict[str, float] = cluster.receipt(rid)["critical_path_ms"]
    parts = [value for key, value in path.items() if key != "total"]
    assert sum(parts) == pytest.approx(path["total"], abs=1e-6)
    assert min(parts) >= 0
    return path


def test_one_trace_from_http_to_release(traced: Traced) -> None:
    rid = traced.ask("The keeper of the lighthouse", 8, f"00-{CLIENT_TRACE}-{CLIENT_SPAN}-01")
    expected = {"request", "read", "queue", "prefill", "kv_transfer", "kv_held", "decode"}
    spans = {span.name: span for span in traced.receiver.wait(CLIENT_TRACE, expected)}
    assert set(spans) == expected
    request = spans.pop("request")
    assert request.parent == CLIENT_SPAN
    assert {span.parent for span in spans.values()} == {request.id}
    assert {span.attributes["baton.request_id"] for span in [request, *spans.values()]} == {rid}
    assert request.events == ("first_token",)
    assert spans["prefill"].events == ("chunk",) * spans["prefill"].attributes[names.CHUNKS]
    assert spans["kv_held"].events == ("released",)
    check_processes(traced.cluster, {"request": request, **spans})
    check_times(request, spans)
    check_facts(request, spans)


def check_processes(cluster: Cluster, spans: dict[str, ReceivedSpan]) -> None:
    """Each span came from the process that did the work, under that process's own name."""
    pids = {worker["role"]: worker["pid"] for worker in cluster.status()["workers"]}
    services = {"prefill": "queue prefill kv_held", "decode": "kv_transfer decode"}
    for role, stages in services.items():
        for stage in stages.split():
            resource = spans[stage].resource
            assert resource["service.name"] == f"baton-{role}"
            assert resource["process.pid"] == spans[stage].attributes["process.pid"] == pids[role]
    assert spans["request"].resource["service.name"] == "baton-gateway"
    assert spans["request"].resource["process.pid"] not in pids.values()


def check_times(request: ReceivedSpan, spans: dict[str, ReceivedSpan]) -> None:
    assert all(span.start_ns >= request.start_ns for span in spans.values())
    order = ("read", "queue", "prefill", "kv_transfer", "decode")
    starts = [spans[name].start_ns for name in order]
    assert starts == sorted(starts)
    assert spans["queue"].end_ns == spans["prefill"].start_ns
    assert spans["kv_transfer"].end_ns <= spans["decode"].start_ns <= spans["decode"].end_ns
    assert spans["kv_held"].start_ns == spans["prefill"].end_ns
    assert spans["decode"].end_ns <= request.end_ns


def check_facts(request: ReceivedSpan, spans: dict[str, ReceivedSpan]) -> None:
    moved = spans["kv_transfer"].attributes
    assert moved[names.TRANSFER_TRANSPORT] == "mapped"
    assert "read right" in str(moved[names.TRANSFER_WHY])
    assert moved[names.TRANSFER_BLOCKS] == 1
    assert moved[names.TRANSFER_BYTES] > 0
    assert moved[names.TRANSFER_GBPS] > 0
    assert moved[names.TRANSFER_OVERLAPPED_MS] >= 0
    assert spans["decode"].attributes[names.DECODED_TOKENS] == 7
    assert request.attributes["gen_ai.usage.output_tokens"] == 8
    assert request.attributes["gen_ai.response.finish_reasons"] == ["length"]
    assert request.attributes["gen_ai.operation.name"] == "text_completion"


def test_a_request_without_a_parent_begins_a_trace_and_an_unsampled_one_leaves_none(
    traced: Traced,
) -> None:
    unsampled = "0af7651916cd43dd8448eb211c80319c"
    traced.ask("Nobody looks", 2, f"00-{unsampled}-{CLIENT_SPAN}-00")
    rid = traced.ask("Somebody looks", 2)

    def arrived() -> list[ReceivedSpan]:
        spans = list(traced.receiver.spans)
        return [s for s in spans if s.name == "request" and s.attributes["baton.request_id"] == rid]

    traced.cluster.wait(arrived)
    [request] = arrived()
    assert request.parent == ""
    assert traced.receiver.trace(unsampled) == []


def test_stages_add_up_to_the_whole_and_little_is_left(traced: Traced) -> None:
    """20 requests of different lengths; one may have met a busy moment of the machine. The first
    decode step may begin before the gateway has token 1: then no hand-over is left to wait for."""
    late = []
    for length in range(20):
        rid = traced.ask(f"{length} ships " + "sailed north and " * (3 * length), 40)
        path = path_of(traced.cluster, rid)
        assert set(path) == {*STAGES, "other", "total"}
        assert path["handover"] >= 0
        assert all(path[stage] > 0 for stage in STAGES if stage != "handover")
        if path["other"] > other_limit_ms(path):
            late.append(path)
    assert len(late) <= 1, late


def other_limit_ms(path: dict[str, float]) -> float:
    return 0.02 * path["total"] + 1


def test_a_request_that_ends_at_token_1_has_no_hand_over(traced: Traced) -> None:
    rid = traced.ask("Only one token", 1)
    path = path_of(traced.cluster, rid)
    assert path["handover"] == 0
    assert path["prefill"] > 0
    stages = {stage["name"] for stage in traced.cluster.receipt(rid)["stages"]}
    assert stages == {"read", "queue", "prefill"}


def test_histograms_count_requests_and_tokens(traced: Traced) -> None:
    traced.cluster.wait(lambda: traced.cluster.metric("baton_num_requests_running") == 0)
    before = counts(traced.cluster)
    for num_tokens in (1, 2, 9):
        traced.ask(f"Counting to {num_tokens}", num_tokens)
    grown = {name: count - before[name] for name, count in counts(traced.cluster).items()}
    assert grown.pop("baton_inter_token_latency_seconds_count") == 0 + 1 + 8
    assert grown.pop("baton_generation_tokens_total") == 1 + 2 + 9
    assert set(grown.values()) == {3}, grown


def counts(cluster: Cluster) -> dict[str, float]:
    """Counters and histograms that a request moves; the whole text must parse."""
    text = cluster.client.get("/metrics").text
    families = list(text_string_to_metric_families(text))
    assert all(":" not in family.name and family.documentation for family in families)
    latencies = ["time_to_first_token", "inter_token_latency", "e2e_request_latency"]
    latencies += [f"request_{stage}_time" for stage in STAGES]
    wanted = [f"baton_{name}_seconds_count" for name in latencies]
    wanted += ["baton_generation_tokens_total", "baton_requests_total", "baton_attempts_total"]
    return {name: cluster.metric(name) for name in wanted}


def test_worker_counters_reach_the_gateway_and_zeros_are_told(traced: Traced) -> None:
    cluster = traced.cluster
    traced.ask("Three blocks of words to move " * 8, 2)
    cluster.wait(lambda: cluster.metric("baton_kv_transfers_total") == traced.num_handed_over)
    text = cluster.client.get("/metrics").text
    assert 'baton_local_prefill_tokens_total{reason="slow_link"} 0.0' in text
    assert 'baton_worker_local_prefill_tokens_total{reason="agg",role="decode"' in text
    assert cluster.metric("baton_kv_transfer_bytes_total") == cluster.metric(
        "baton_worker_kv_transfer_bytes_total"
    )
    assert 'baton_worker_requests{role="decode",stage="transfer",worker="decode-0"} 0.0' in text


def test_planted_faults_lengthen_their_own_stages_only(
    tmp_path: Path, traced: Traced, measured: Measured
) -> None:
    """All three in one system. No sum of some of them is another: time that is told in a wrong
    stage, in two or in none makes one grow by what no limit here allows."""
    delays = ",".join(f"{place}={delay_ms}" for place, (_, delay_ms) in PLANTED.items())
    grown: dict[str, list[float]] = {name: [] for name in STAGES}
    with running(tmp_path, BATON_PLANTED_FAULTS=delays) as delayed:
        ask(delayed, "The first request of a process is slower", 3)
        for turn in range(7):
            prompt = f"Request {turn} is asked of both"
            plain = path_of(traced.cluster, traced.ask(prompt, 3))
            slow = path_of(delayed, ask(delayed, prompt, 3))
            for name in STAGES:
                grown[name].append(slow[name] - plain[name])
    medians = {name: statistics.median(values) for name, values in grown.items()}
    for stage, delay_ms in PLANTED.values():
        measured.near(f"{stage} grew by", medians.pop(stage), delay_ms, TOLERANCE_MS, "ms")
    for stage, value in medians.items():
        measured.at_most(f"{stage} grew by", value, TOLERANCE_MS, "ms")


def test_a_local_request_and_a_resumed_one_add_up_with_no_collector_there(
    tmp_path: Path, measured: Measured
) -> None:
    """Aggregated workers; the collector's port is closed, which must slow nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = f"http://127.0.0.1:{server.getsockname()[1]}"
    flags = ("--topology", "agg", "--decode", "2")
    with running(tmp_path, *flags, BATON_OTLP_ENDPOINT=closed) as cluster:
        prompts = [f"Computed and decoded in one place, {turn}" for turn in range(5)]
        paths = [path_of(cluster, ask(cluster, prompt, 20)) for prompt in prompts]
        assert all(path["handover"] == 0 for path in paths)
        assert sum(path["other"] > other_limit_ms(path) for path in paths) <= 1, paths
        check_resumed(cluster)
        stop_s = time.monotonic()
    measured.at_most("stopping without a collector", time.monotonic() - stop_s, 12, "s")


def check_resumed(cluster: Cluster) -> None:
    """kill -9 of the worker that decodes: the path is that of the attempt that ended it."""
    sampled = "baton_tokens_sampled_total"
    with cluster.streams([{"prompt": "Long", "max_tokens": 120, "ignore_eos": True}]) as streams:
        streams.wait_tokens(20, 1)
        rid = streams.seen[0].rid
        serving = cluster.receipt(rid)["workers"]["decode"]
        before = cluster.metric(sampled)
        [pid] = [worker["pid"] for worker in cluster.workers() if worker["id"] == serving]
        os.kill(pid, signal.SIGKILL)
        assert streams.wait(60)[0].complete
    assert cluster.metric(sampled) >= before, "a total went backwards with its worker"
    receipt = cluster.receipt(rid)
    path = path_of(cluster, rid)
    assert [attempt["epoch"] for attempt in receipt["attempts"]] == [0, 1]
    first, last = receipt["attempts"]
    assert (first["end"], last["end"]) == ("link_lost", "done")
    lost_ms = (first["ended_ns"] - receipt["accepted_ns"]) / 1e6
    assert path["earlier_attempts"] == pytest.approx(lost_ms)
    assert path["handover"] == 0
    assert path["decode"] > 0
    assert {stage["epoch"] for stage in receipt["stages"] if stage["name"] == "decode"} == {0, 1}
