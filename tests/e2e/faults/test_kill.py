"""Two prefill and two decode workers: nothing local and no backlog while nothing is wrong, one of
each role killed under 24 streams and nobody notices, one after the other amid copies, and all of it
killed with its parent. Then the like where KV comes by nixl, and by nccl."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.cluster import (
    Cluster,
    Stream,
    Streams,
    drawn_bodies,
    process_family,
    running,
)
from tests.support.kv_pools import holders, own_pool, pools_gone_s
from tests.support.measured import Measured
from tests.support.pairs.worker_tree import engine_of

NUM_STREAMS = 24
NUM_TOKENS = 48
GONE_S = 5.0
NUM_KILLS = int(os.environ.get("WORKER_KILLS", "5"))
"""amid copies; `make hand-overs` sets it"""
NUM_READ_KILLS = int(os.environ.get("WORKER_KILLS", "3"))
"""amid reads by nixl, and by nccl's code over gloo"""
NUM_READ_STREAMS = 6
COPIES_WAIT_S = 0.05
SERVES_WITHIN_S = 1.0
"""what is left of the cell, after a kill"""
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
    return drawn_bodies(NUM_STREAMS, NUM_TOKENS, seed, lambda rng: rng.choice((33, 64, 100, 257)))


def io_process(worker: dict[str, Any]) -> tuple[int, ...]:
    return (int(worker["pid"]),)


def engine_process(worker: dict[str, Any]) -> tuple[int, ...]:
    return (engine_of(worker["pid"]).pid,)


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
    wait_whole(cluster, died)
    cluster.wait_blocks_back()
    undisturbed = cluster.answers(bodies)
    assert all(stream.complete for stream in undisturbed)
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


@pytest.mark.alone
@pytest.mark.clock
@pytest.mark.timeout(900)
def test_workers_killed_in_turn_amid_copies(cluster: Cluster, measured: Measured) -> None:
    """An owner first, then a reader, and so on."""
    free_s, serves_s, num_hit = 0.0, 0.0, 0
    for number in range(NUM_KILLS):
        bodies = long_prompts(number)
        before = {worker["incarnation"] for worker in cluster.workers()}
        with cluster.streams(bodies) as streams:
            streams.wait_tokens(1, num_streams=2)
            victim = cluster.workers(("prefill", "decode")[number % 2])[number // 2 % 2]
            pool, others = kill_amid_copies(cluster, victim)
            free_s = max(free_s, pools_gone_s([pool], others))
            serves_s = max(serves_s, serves_again_s(streams))
            seen = streams.wait(120)
        assert [stream for stream in seen if not stream.complete] == []
        num_hit += sum(num_attempts(cluster, stream) > 1 for stream in seen)
        wait_whole(cluster, {victim["incarnation"]})
        assert len(before & {worker["incarnation"] for worker in cluster.workers()}) == 3
        undisturbed = cluster.answers(bodies)
        assert [stream.answer for stream in seen] == [stream.answer for stream in undisturbed]
        cluster.wait_blocks_back()
    measured.at_least("streams hit", num_hit, NUM_KILLS // 2)
    measured.at_most("the survivors serve after", serves_s, SERVES_WITHIN_S, "s")
    measured.at_most("a dead worker's pool is held for", free_s, POOL_GONE_S, "s")


def long_prompts(number: int) -> list[dict[str, Any]]:
    """Of several chunks: the first are copied while the last are computed. None begins like one
    that a worker knows."""
    return drawn_bodies(NUM_READ_STREAMS, NUM_TOKENS, number, lambda rng: rng.randrange(200, 400))


def kill_amid_copies(cluster: Cluster, victim: dict[str, Any]) -> tuple[int, list[int]]:
    """Its two processes; returns its pool and the processes that are left. The readers' engines
    stand still meanwhile, so that copies which they are asked for are under way."""
    engine = engine_process(victim)[0]
    pool = own_pool(engine)
    family = [process.pid for process in process_family(cluster.supervisor.pid)]
    readers = [engine_process(worker)[0] for worker in cluster.workers("decode")]
    for pid in readers:
        os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(COPIES_WAIT_S)
        for pid in (victim["pid"], engine):
            os.kill(pid, signal.SIGKILL)
    finally:
        for pid in readers:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    return pool, [pid for pid in family if pid not in (victim["pid"], engine)]


def serves_again_s(streams: Streams) -> float:
    """Seconds until a token for each stream has come, whichever streams they are of."""
    start_s = time.monotonic()
    wanted = num_tokens(streams) + NUM_READ_STREAMS
    while num_tokens(streams) < wanted:
        assert time.monotonic() < start_s + 60, streams.seen
        time.sleep(0.005)
    return time.monotonic() - start_s


def num_tokens(streams: Streams) -> int:
    return sum(len(stream.tokens) for stream in streams.seen)


def num_attempts(cluster: Cluster, stream: Stream) -> int:
    return len(cluster.receipt(stream.rid)["attempts"])


def wait_whole(cluster: Cluster, died: set[str]) -> None:
    cluster.wait(lambda: is_whole(cluster, died), 60)


def test_nothing_survives_kill_9_of_up(cluster: Cluster) -> None:
    """The last test of this cell: with the parent die gateway, workers, engines and Redis."""
    family = process_family(cluster.supervisor.pid)
    names = [" ".join(process.cmdline()) for process in family]
    assert sum("baton serve" in name for name in names) == 5
    assert sum("fork_server" in name for name in names) == 8, "4, and what each forked"
    assert sum("redis-server" in name for name in names) == 1
    cluster.supervisor.kill()
    cluster.supervisor.wait()
    _, alive = psutil.wait_procs(family[1:], timeout=10)
    assert [process.cmdline() for process in alive] == []


@pytest.mark.alone
@pytest.mark.timeout(900)
@pytest.mark.parametrize("way", ["nixl", "nccl"])
def test_workers_killed_in_turn_amid_reads(way: str, tmp_path: Path) -> None:
    """An owner first, then a reader, and so on: no source dies of its reader's death."""
    flags = ("--prefill", "2", "--decode", "2", "--kv-blocks", "1024", "--transport", way)
    with running(tmp_path, *flags, BATON_MAX_NUM_BATCHED_TOKENS="96") as reading:
        kill_in_turn(reading, way)


def kill_in_turn(reading: Cluster, way: str) -> None:
    for number in range(NUM_READ_KILLS):
        bodies = long_prompts(number)
        before = {worker["incarnation"] for worker in reading.workers()}
        with reading.streams(bodies) as streams:
            streams.wait_tokens(1, num_streams=2)
            victim = reading.workers(("prefill", "decode")[number % 2])[number // 2 % 2]
            kill_amid_copies(reading, victim)
            seen = streams.wait(120)
        assert [stream for stream in seen if not stream.complete] == []
        wait_whole(reading, {victim["incarnation"]})
        assert len(before & {worker["incarnation"] for worker in reading.workers()}) == 3
        undisturbed = reading.answers(bodies)
        assert [stream.answer for stream in seen] == [stream.answer for stream in undisturbed]
        assert {reading.receipt(stream.rid)["transport"] for stream in undisturbed} == {way}
        reading.wait_blocks_back()
