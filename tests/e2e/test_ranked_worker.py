"""A worker of two ranks behind a gateway: it answers, a stream outlives a rank, nothing is left."""

import os
import signal
from collections.abc import Iterator

import psutil
import pytest

from tests.e2e.cluster import Cluster, running

BODY = {"prompt": list(range(100, 140)), "max_tokens": 64, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("ranks"), "--tp", "2") as cluster:
        yield cluster


def followers(cluster: Cluster) -> list[psutil.Process]:
    """Ranks but the first, of the one worker."""
    (worker,) = cluster.workers()
    (engine,) = psutil.Process(worker["pid"]).children()
    return engine.children()


def test_two_ranks_answer(cluster: Cluster) -> None:
    assert len(followers(cluster)) == 1
    first, second = (cluster.answer(BODY) for _ in range(2))
    assert first.complete
    assert first.answer == second.answer
    assert len(first.tokens) == BODY["max_tokens"]


def test_a_stream_outlives_a_rank(cluster: Cluster) -> None:
    expected = cluster.answer(BODY)
    (rank,) = followers(cluster)
    with cluster.streams([BODY]) as streams:
        streams.wait_tokens(4, 1)
        os.kill(rank.pid, signal.SIGKILL)
        (stream,) = streams.wait(60)
    assert stream.complete
    assert stream.answer == expected.answer
    assert rank.pid not in [process.pid for process in followers(cluster)]
    assert f"rank 1 (pid {rank.pid}) was killed by SIGKILL" in cluster.log_tail()
