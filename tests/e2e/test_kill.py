"""Two prefill and two decode workers, one of each killed under 24 streams: nobody notices."""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from tests.e2e.cluster import Cluster, Stream, running

NUM_STREAMS = 24
NUM_TOKENS = 48
GONE_S = 5.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("kill")
    flags = ("--prefill", "2", "--decode", "2", "--kv-blocks", "1024")
    with running(folder, *flags, BATON_MAX_NUM_BATCHED_TOKENS="96") as cluster:
        yield cluster


def mixed_bodies(seed: int) -> list[dict[str, Any]]:
    """Prompts around block and chunk borders; half greedy, half seeded sampling."""
    rng = random.Random(seed)  # noqa: S311
    return [
        {
            "prompt": [rng.randrange(100, 1000) for _ in range(rng.choice((33, 64, 100, 257)))],
            "max_tokens": NUM_TOKENS,
            "ignore_eos": True,
            "temperature": 0.9 * (at % 2),
            "seed": at,
        }
        for at in range(NUM_STREAMS)
    ]


def io_process(worker: dict[str, Any]) -> int:
    return int(worker["pid"])


def engine_process(worker: dict[str, Any]) -> int:
    (engine,) = psutil.Process(worker["pid"]).children()
    return engine.pid


@pytest.mark.parametrize("victim", [io_process, engine_process])
def test_kill_one_decode_and_one_prefill_worker_under_24_streams(
    cluster: Cluster, victim: Callable[[dict[str, Any]], int]
) -> None:
    bodies = mixed_bodies(seed=1 + (victim is engine_process))
    with cluster.streams(bodies) as streams:
        streams.wait_tokens(2, num_streams=NUM_STREAMS // 4)
        victims = [cluster.workers(role)[0] for role in ("decode", "prefill")]
        for worker in victims:
            os.kill(victim(worker), signal.SIGKILL)
        killed_s = time.monotonic()
        died = {worker["incarnation"] for worker in victims}
        cluster.wait(lambda: died.isdisjoint(incarnations(cluster)), GONE_S)
        seen = streams.wait(120)
    assert [stream for stream in seen if not stream.complete] == []
    causes = [cause(cluster, stream) for stream in seen]
    assert causes.count("link_lost") >= 4, f"the kill hit hardly anybody: {causes}"
    assert killed_s
    cluster.wait(lambda: is_whole(cluster, died), 60)
    cluster.wait_blocks_back()
    undisturbed = cluster.answers(bodies)
    assert [stream.answer for stream in seen] == [stream.answer for stream in undisturbed]
    assert len({stream.text for stream in seen}) > NUM_STREAMS // 2
    cluster.wait_blocks_back()


def incarnations(cluster: Cluster) -> set[str]:
    return {worker["incarnation"] for worker in cluster.workers()}


def is_whole(cluster: Cluster, died: set[str]) -> bool:
    """All four workers are ready, those that died as new incarnations."""
    workers = cluster.workers()
    ready = {worker["id"] for worker in workers if worker["state"] == "ready"}
    return len(ready) == len(workers) == 4 and died.isdisjoint(incarnations(cluster))


def cause(cluster: Cluster, stream: Stream) -> str:
    """What ended the first attempt of a request; empty when it had only one."""
    attempts = cluster.receipt(stream.rid)["attempts"]
    return str(attempts[0]["end"]) if len(attempts) > 1 else ""
