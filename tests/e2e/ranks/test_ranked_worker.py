"""A worker of two ranks behind a gateway: it answers, a stream outlives a rank, nothing is left."""

import os
import signal
from collections.abc import Iterator

import psutil
import pytest

from tests.e2e.cluster import Cluster, running
from tests.support.pairs.worker_tree import engine_of

BODY = {"prompt": list(range(100, 140)), "max_tokens": 64, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    # Every attempt on the only worker is in vain, for 5 s each, until its hanging engine is ended.
    flags = {"BATON_ENGINE_SILENCE_S": "4", "BATON_MAX_ATTEMPTS": "8"}
    with running(tmp_path_factory.mktemp("ranks"), "--tp", "2", **flags) as cluster:
        yield cluster


def followers(cluster: Cluster) -> list[psutil.Process]:
    """Ranks but the first, of the one worker."""
    (worker,) = cluster.workers()
    return engine_of(worker["pid"]).children()


def test_two_ranks_answer(cluster: Cluster) -> None:
    assert len(followers(cluster)) == 1
    first, second = (cluster.answer(BODY) for _ in range(2))
    assert first.complete
    assert first.answer == second.answer
    assert len(first.tokens) == BODY["max_tokens"]


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (signal.SIGKILL, "rank 1 (pid {rank}) was killed by SIGKILL"),
        (signal.SIGSTOP, "the engine process (pid {engine}) answered nothing for "),
    ],
)
def test_a_stream_outlives_a_rank(cluster: Cluster, fault: signal.Signals, says: str) -> None:
    expected = cluster.answer(BODY)
    (rank,) = followers(cluster)
    engine_pid = rank.ppid()
    with cluster.streams([BODY]) as streams:
        streams.wait_tokens(4, 1)
        os.kill(rank.pid, fault)
        (stream,) = streams.wait(60)
    assert stream.complete
    assert stream.answer == expected.answer
    assert rank.pid not in [process.pid for process in followers(cluster)]
    assert says.format(rank=rank.pid, engine=engine_pid) in cluster.log_tail()
