"""Receipts of a real cell name what was planted, and nothing where nothing was."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.cluster import Cluster, drawn_bodies, running

FLAGS = ("--topology", "agg", "--decode", "1", "--threads", "1")
SMALL = {"BATON_MAX_NUM_SEQS": "4", "BATON_MAX_NUM_BATCHED_TOKENS": "512"}
LONG_TOKENS = 1500
NUM_LONG = 3
NUM_ENDED = 12
"""after which a worker knows how often one ends"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("slowness"), *FLAGS, **SMALL) as cluster:
        yield cluster


def body(num_prompt: int, max_tokens: int, seed: int) -> dict[str, Any]:
    return drawn_bodies(1, max_tokens, seed, lambda _: num_prompt)[0]


def receipt(cluster: Cluster, rid: str) -> dict[str, Any]:
    """Once its workers have told."""
    cluster.wait(lambda: cluster.receipt(rid)["compute_ms"] is not None)
    return cluster.receipt(rid)


def test_a_fast_answer_names_no_cause_and_what_it_used(cluster: Cluster) -> None:
    answer = cluster.answer(body(20, 60, seed=1))
    told = receipt(cluster, answer.rid)
    assert told["slow_because"] is None, told
    assert 0 < told["compute_ms"] <= told["critical_path_ms"]["total"]
    assert told["kv_byte_seconds"] > 0


def test_long_prompts_next_to_it_are_named(cluster: Cluster) -> None:
    with cluster.streams([body(20, 60, seed=2)]) as decoding:
        decoding.wait_tokens(5, num_streams=1)
        longs = [body(LONG_TOKENS, 1, seed) for seed in range(10, 10 + NUM_LONG)]
        cluster.answers(longs)
        (seen,) = decoding.wait(60)
    told = receipt(cluster, seen.rid)
    assert told["slow_because"] == "long_neighbour", told


def test_a_wait_for_others_is_named(cluster: Cluster) -> None:
    """Four run, the last ones wait for their places."""
    bodies = [body(20, 100, seed) for seed in range(20, 36)]
    with cluster.streams(bodies) as streams:
        seen = streams.wait(120)
    told = [receipt(cluster, each.rid) for each in seen]
    last = max(told, key=lambda each: each["started_ns"])
    assert last["slow_because"] == "queue", last
    assert last["slow_because_ms"] == pytest.approx(last["critical_path_ms"]["queue"], abs=0.001)


def test_a_deadline_that_a_full_worker_cannot_keep_is_refused_at_once(cluster: Cluster) -> None:
    """Twenty wait for four places, and none of them longer than it would have to."""
    bodies = [body(20, 60, seed) for seed in range(40, 76)]
    with cluster.streams(bodies) as streams:
        cluster.wait(lambda: sum(each.done for each in streams.seen) >= NUM_ENDED, 60)
        asked = {"model": cluster.model(), **body(20, 60, seed=99), "stream": False}
        headers = {"x-baton-timeout-s": "0.3"}
        url = f"{cluster.url}/v1/completions"
        answer = httpx.post(url, json=asked, headers=headers, timeout=60)
        assert answer.status_code == 429, answer.text
        assert "before its answer can be whole" in answer.text
        seen = streams.wait(120)
    assert all(each.complete for each in seen)


def test_a_worker_that_stands_still_is_a_retry(tmp_path: Path) -> None:
    """Its link is silent, and the answer goes on at the other one."""
    flags = ("--topology", "agg", "--decode", "2", "--threads", "1")
    with running(tmp_path, *flags) as cluster:
        with cluster.streams([body(20, 400, seed=3)]) as streams:
            streams.wait_tokens(5, num_streams=1)
            (worker,) = [each for each in cluster.workers() if each["kv"]["held"]]
            with stopped(worker["pid"]):
                (seen,) = streams.wait(60)
        told = receipt(cluster, seen.rid)
        assert len(told["attempts"]) > 1
        assert told["slow_because"] == "retry", told


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that stands still."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
