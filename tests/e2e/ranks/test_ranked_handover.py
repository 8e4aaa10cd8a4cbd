"""Prefill and decode workers of two ranks each hand over, and a rank's death loses nothing."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest

from tests.e2e.cluster import Cluster, running
from tests.support.pairs.worker_tree import find_engine

BODY = {"prompt": list(range(100, 170)), "max_tokens": 48, "ignore_eos": True, "temperature": 0}
BODIES = [{**BODY, "prompt": list(range(first, first + 70))} for first in (100, 180, 260, 340)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    path = tmp_path_factory.mktemp("ranks")
    flags = ("--topology", "pd", "--prefill-tp", "2", "--decode-tp", "2")
    with running(path, *flags, BATON_PREFIX_CACHE="false") as cluster:
        yield cluster


def followers(cluster: Cluster, role: str) -> list[int]:
    """Processes of ranks but the first, of the workers that are registered."""
    found = []
    for worker in cluster.workers(role):
        with suppress(psutil.NoSuchProcess):
            engine = find_engine(worker["pid"])
            found += [rank.pid for rank in engine.children()] if engine is not None else []
    return found


def test_kv_is_handed_over_and_given_back(cluster: Cluster) -> None:
    first, second = (cluster.answer(BODY) for _ in range(2))
    assert first.complete
    assert first.answer == second.answer
    receipt = cluster.receipt(first.rid)
    assert receipt["transport"] == "mapped"
    assert not cluster.unwanted_local_prefill()
    cluster.wait_blocks_back()


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_streams_outlive_a_rank(cluster: Cluster, role: str) -> None:
    expected = cluster.answers(BODIES)
    (rank,) = followers(cluster, role)
    with cluster.streams(BODIES) as streams:
        streams.wait_tokens(4, 1)
        os.kill(rank, signal.SIGKILL)
        seen = streams.wait(90)
    assert all(stream.complete for stream in seen)
    assert [stream.answer for stream in seen] == [stream.answer for stream in expected]
    cluster.wait(lambda: len(followers(cluster, role)) == 1, 60)
    cluster.wait_blocks_back()
