"""A decode worker one of whose ranks answers nothing is replaced, and no stream is lost."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.cluster import Cluster, running
from tests.support.pairs.worker_tree import engine_of

BODY = {"prompt": list(range(100, 170)), "max_tokens": 8, "ignore_eos": True, "temperature": 0}
BODIES = [{**BODY, "prompt": list(range(first, first + 70))} for first in (100, 180, 260)]


def rank_of(worker: dict[str, Any]) -> psutil.Process:
    """Rank 1 of a decode worker of two."""
    (rank,) = engine_of(worker["pid"]).children()
    return rank


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    flags = ("--topology", "pd", "--decode", "2", "--decode-tp", "2")
    more = {"BATON_ENGINE_SILENCE_S": "4", "BATON_PREFIX_CACHE": "false"}
    with running(tmp_path, *flags, **more) as cluster:
        yield cluster


@pytest.mark.timeout(150)
def test_a_frozen_rank_of_an_idle_worker_is_replaced(cluster: Cluster) -> None:
    """Rank 0 of a worker that runs no step answers by itself, and fills that the frozen rank never
    answers must not keep the worker from ending."""
    cluster.answers(BODIES)
    rank = rank_of(cluster.workers("decode")[0])
    os.kill(rank.pid, signal.SIGSTOP)
    try:
        deadline_s = time.monotonic() + 60
        while rank.is_running() and time.monotonic() < deadline_s:
            with cluster.streams(BODIES) as streams:
                seen = streams.wait(60)
            assert all(stream.complete for stream in seen)
        assert not rank.is_running()
    finally:
        with suppress(psutil.NoSuchProcess):
            rank.resume()
