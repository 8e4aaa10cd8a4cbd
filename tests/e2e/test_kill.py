"""Two prefill and two decode workers: nothing local and no backlog while nothing is wrong, one of
each role killed under 24 streams and nobody notices, and all of it killed with its parent."""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from tests.e2e.cluster import Cluster, Stream, process_family, running
from tests.support.kv_pools import holders, own_pool
from tests.support.measured import Measured

NUM_STREAMS = 24
NUM_TOKENS = 48
GONE_S = 5.0
POOL_GONE_S = 1.0
"""nothing maps the pool of a dead worker any more (R19)"""


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


def io_process(worker: dict[str, Any]) -> tuple[int, ...]:
    return (int(worker["pid"]),)


def engine_process(worker: dict[str, Any]) -> tuple[int, ...]:
    (engine,) = psutil.Process(worker["pid"]).children()
    return (engine.pid,)


def both_processes(worker: dict[str, Any]) -> tuple[int, ...]:
    return io_process(worker) + engine_process(worker)


def test_fault_free_prompts_are_computed_by_prefill_workers_only(cluster: Cluster) -> None:
    """And idle dispatch uses no backlog. Another file plants a local prefill and sees it counted;
    here a crowd shows that the backlog's counters count."""
    bodies = [*mixed_bodies(seed=11), *mixed_bodies(seed=12)][:32]
    answers = [cluster.answer({**body, "max_tokens": 4}) for body in bodies]
    assert all(stream.complete for stream in answers)
    num_tokens = sum(len(body["prompt"]) for body in bodies)
    cluster.wait(lambda: counted(cluster) >= num_tokens)
    assert cluster.metric("baton_local_prefill_tokens_total") == 0
    assert cluster.metric("baton_direct_assigns_total") == len(bodies)
    assert cluster.metric("baton_attempts_total") == len(bodies)
    assert cluster.metric("baton_backlog_puts_total") == 0
    assert cluster.metric("baton_backlog_pops_total") == 0
    crowd = cluster.answers([{**body, "max_tokens": 4} for body in mixed_bodies(seed=13)])
    assert all(stream.complete for stream in crowd)
    assert cluster.metric("baton_backlog_puts_total") > 0
    cluster.wait(lambda: cluster.metric("baton_backlog_pops_total") > 0)
    assert cluster.metric("baton_local_prefill_tokens_total") == 0


def counted(cluster: Cluster) -> float:
    """Prompt tokens that workers have reported so far."""
    cluster.status()
    return cluster.metric("baton_prompt_tokens_total")


@pytest.mark.parametrize(
    ("victim", "expected", "seed"),
    [
        (io_process, "link_lost", 1),
        (engine_process, "handback_killed", 2),
        (both_processes, "link_lost", 3),
    ],
)
def test_kill_one_decode_and_one_prefill_worker_under_24_streams(
    cluster: Cluster,
    victim: Callable[[dict[str, Any]], tuple[int, ...]],
    expected: str,
    seed: int,
    measured: Measured,
) -> None:
    """An io process that outlives its engine gives back what it held; what was on its way to it
    meanwhile loses the link. The pools of the dead are mapped by nobody soon after."""
    bodies = mixed_bodies(seed)
    with cluster.streams(bodies) as streams:
        streams.wait_tokens(2, num_streams=NUM_STREAMS // 4)
        victims = [cluster.workers(role)[0] for role in ("decode", "prefill")]
        died = {worker["incarnation"] for worker in victims}
        pools = {worker["role"]: own_pool(*engine_process(worker)) for worker in victims}
        family = [process.pid for process in process_family(cluster.supervisor.pid)]
        assert len(holders(pools["prefill"], family)) > 2, "no other worker maps it"
        for pid in [pid for worker in victims for pid in victim(worker)]:
            os.kill(pid, signal.SIGKILL)
        gone_s = pools_gone_s(set(pools.values()), family)
        measured.at_most("a dead worker's pool is held for", gone_s, POOL_GONE_S, "s")
        cluster.wait(lambda: died.isdisjoint(incarnations(cluster)), GONE_S)
        seen = streams.wait(120)
    assert [stream for stream in seen if not stream.complete] == []
    causes = [cause(cluster, stream) for stream in seen]
    num_hit = sum(ended in (expected, "link_lost") for ended in causes)
    assert num_hit >= 4 and expected in causes, f"the kill hit hardly anybody: {causes}"
    cluster.wait(lambda: is_whole(cluster, died), 60)
    cluster.wait_blocks_back()
    undisturbed = cluster.answers(bodies)
    assert all(stream.complete for stream in undisturbed)
    assert [stream.answer for stream in seen] == [stream.answer for stream in undisturbed]
    assert len({stream.text for stream in seen}) > NUM_STREAMS // 2
    cluster.wait_blocks_back()


def pools_gone_s(pools: set[int], pids: list[int]) -> float:
    """Seconds until none of these processes holds one of the pools."""
    start_s = time.monotonic()
    while any(holders(pool, pids) for pool in pools):
        assert time.monotonic() < start_s + 5 * POOL_GONE_S, [holders(p, pids) for p in pools]
        time.sleep(0.005)
    return time.monotonic() - start_s


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


def test_nothing_survives_kill_9_of_up(cluster: Cluster) -> None:
    """The last test of this file: with the parent die gateway, workers, engines and Redis."""
    family = process_family(cluster.supervisor.pid)
    names = [" ".join(process.cmdline()) for process in family]
    assert sum("baton serve" in name for name in names) == 5
    assert sum("engine_process" in name for name in names) == 4
    assert sum("redis-server" in name for name in names) == 1
    cluster.supervisor.kill()
    cluster.supervisor.wait()
    _, alive = psutil.wait_procs(family[1:], timeout=10)
    assert [process.cmdline() for process in alive] == []
