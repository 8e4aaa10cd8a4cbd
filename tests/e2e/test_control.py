"""Processes as a pod runs them, a Redis of their own and a proxy on each link: Redis lost, frozen
and emptied under streams, frames out of order, and a deadline that ends a request cleanly."""

import asyncio
import json
import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from services.gateway.owner.upkeep import BEAT_LOOP
from shared.protocol import Message, Tokens
from shared.state.embedded import EmbeddedRedis
from tests.e2e.cluster import Cell, Cluster, Stream, is_ready
from tests.e2e.wire import LinkProxy, ProxyThread, free_port, pass_at_once
from tests.support.measured import Measured

pytestmark = [pytest.mark.alone, pytest.mark.clock]

TIMEOUT_S = 3.0
"""of a request at the second gateway"""
MAX_GAP_S = 1.0
"""between two frames of a stream, whatever happens to Redis; a busy machine included"""
BACK_S = 2.0
REAPED_S = 15.0
"""until nothing of a dead gateway is left"""
AWAY_S = {"killed": 2.0, "frozen": 3.0, "emptied": 0.5, "mistyped": 3.0}


class ProxiedCell(Cell):
    """Gateway, prefill and decode, with a proxy on the links of the workers."""

    def __init__(self, folder: Path, redis: EmbeddedRedis, thread: ProxyThread) -> None:
        super().__init__(folder, redis)
        self.thread = thread
        self.proxies: dict[str, LinkProxy] = {}


@contextmanager
def proxied(cell: ProxiedCell, role: str, *flags: str) -> Iterator[None]:
    """A worker whose link goes through a proxy."""
    with free_port() as port:
        proxy = cell.proxies[role] = LinkProxy(f"127.0.0.1:{port}")
        advertised = cell.thread.run(proxy.start())
        cell.serve(role, "--worker-port", str(port), "--worker-advertise", advertised, *flags)
        try:
            yield
        finally:
            cell.thread.run(proxy.close())


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ProxiedCell, Cluster]]:
    folder = tmp_path_factory.mktemp("control")
    with ExitStack() as stack:
        server = stack.enter_context(EmbeddedRedis())
        thread = ProxyThread()
        stack.callback(thread.close)
        cell = ProxiedCell(folder, server, thread)
        for role in ("prefill", "decode"):
            stack.enter_context(proxied(cell, role, "--kv-blocks", "512"))
        stack.callback(cell.close)
        yield cell, stack.enter_context(cell.gateway("gateway", num_workers=2))


@pytest.fixture
def cell(bed: tuple[ProxiedCell, Cluster]) -> ProxiedCell:
    return bed[0]


@pytest.fixture
def cluster(bed: tuple[ProxiedCell, Cluster]) -> Cluster:
    """Both workers ready, nothing held."""
    cluster = bed[1]
    cluster.wait(lambda: is_ready(cluster, 2), 60)
    cluster.wait_blocks_back()
    return cluster


def bodies_of(num: int, max_tokens: int, seed: int) -> list[dict[str, Any]]:
    rng = random.Random(seed)  # noqa: S311
    return [
        {
            "prompt": [rng.randrange(1000, 4000) for _ in range(40 + at)],
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "temperature": 0.9 * (at % 2),
            "seed": at,
        }
        for at in range(num)
    ]


class Overtaking:
    """Prefill's tokens wait in their proxy until decode has spoken of the same request."""

    def __init__(self) -> None:
        self.order: list[tuple[str, str, int]] = []
        """(request, role, index) of each run in the order the gateway got them"""
        self._spoken: dict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def prefill(self, message: Message) -> None:
        if isinstance(message, Tokens):
            for run in message.runs:
                await self._spoken[run.rid].wait()
            self._note("prefill", message)

    async def decode(self, message: Message) -> None:
        if isinstance(message, Tokens):
            self._note("decode", message)
            for run in message.runs:
                self._spoken[run.rid].set()

    def _note(self, role: str, message: Tokens) -> None:
        self.order += [(run.rid, role, run.index) for run in message.runs]


def test_decode_frames_before_those_of_prefill(cell: ProxiedCell, cluster: Cluster) -> None:
    bodies = bodies_of(8, max_tokens=12, seed=1)
    overtaking = Overtaking()
    cell.proxies["prefill"].before = overtaking.prefill
    cell.proxies["decode"].before = overtaking.decode
    swapped = cluster.answers(bodies)
    for proxy in cell.proxies.values():
        proxy.before = pass_at_once
    for stream in swapped:
        assert stream.complete
        order = [(role, index) for rid, role, index in overtaking.order if rid == stream.rid]
        assert order[0] == ("decode", 0)
        assert ("prefill", 0) in order
        assert len(cluster.receipt(stream.rid)["attempts"]) == 1
    in_order = cluster.answers(bodies)
    assert [stream.answer for stream in swapped] == [stream.answer for stream in in_order]


def max_gap_s(streams: list[Stream]) -> float:
    times = [stream.chunk_times_s for stream in streams]
    return max(later - earlier for some in times for earlier, later in pairwise(some))


@pytest.mark.parametrize("fault", AWAY_S)
def test_redis_lost_under_running_streams(
    cell: ProxiedCell, cluster: Cluster, fault: str, measured: Measured
) -> None:
    bodies = bodies_of(2, max_tokens=300, seed=len(fault))
    with cluster.streams(bodies) as streams:
        streams.wait_tokens(20, num_streams=len(bodies))
        num_before = [len(seen.tokens) for seen in streams.seen]
        lose_redis(cell, fault)
        with cluster.streams(bodies_of(1, 2, seed=8)) as meanwhile:
            time.sleep(AWAY_S[fault])
            bring_back_redis(cell, cluster, fault)
            (asked,) = meanwhile.wait(10)
        assert asked.complete or asked.status == 503
        assert cluster.client.get("/health").status_code == 200
        num_after = [len(seen.tokens) for seen in streams.seen]
        assert all(after > before for before, after in zip(num_before, num_after, strict=True))
        back_s = time.monotonic()
        cluster.wait(lambda: cluster.answer(bodies_of(1, 2, seed=9)[0]).complete, 5)
        measured.at_most("served again after", time.monotonic() - back_s, BACK_S, "s")
        seen = streams.wait(60)
    assert [stream for stream in seen if not stream.complete] == []
    measured.at_most("longest gap of a stream", max_gap_s(seen), MAX_GAP_S, "s")
    assert all(len(cluster.receipt(stream.rid)["attempts"]) == 1 for stream in seen)
    undisturbed = cluster.answers(bodies)
    assert all(stream.complete for stream in undisturbed)
    assert [stream.answer for stream in seen] == [stream.answer for stream in undisturbed]
    cluster.wait_blocks_back()


def lose_redis(cell: ProxiedCell, fault: str) -> None:
    """Dead, frozen, there and empty, or with a string for its registry."""
    if fault in ("emptied", "mistyped"):
        with redis.Redis.from_url(cell.redis.url) as client:
            if fault == "emptied":
                client.flushall()
            else:
                client.set(registry_key(client), "somebody's")
    else:
        os.kill(cell.redis.pid, signal.SIGKILL if fault == "killed" else signal.SIGSTOP)


def bring_back_redis(cell: ProxiedCell, cluster: Cluster, fault: str) -> None:
    if fault == "killed":
        # What the chart's alert that Redis is away reads.
        name, labels = "baton_loop_failures_total", f'loop="{BEAT_LOOP}"'
        cluster.wait(lambda: cluster.samples(name)[labels] > 0)
        cell.redis.restart()
    elif fault == "frozen":
        os.kill(cell.redis.pid, signal.SIGCONT)
    elif fault == "mistyped":
        with redis.Redis.from_url(cell.redis.url) as client:
            client.delete(registry_key(client))
    assert cell.exited() == []
    if fault == "mistyped":
        assert cluster.metric("baton_redis_errors_total") > 0
        assert cluster.metric("baton_loop_failures_total") > 0


def registry_key(client: "redis.Redis") -> bytes:
    (key,) = client.scan_iter("baton:1:workers:*")
    assert isinstance(key, bytes)
    return key


def test_no_worker_until_the_deadline_is_one_clean_error(
    cell: ProxiedCell, cluster: Cluster
) -> None:
    """At a gateway that gives up soon; another, with the same request, waits and goes on."""
    (body,) = bodies_of(1, max_tokens=300, seed=3)
    with (
        cell.gateway("hasty", "--request-timeout-s", str(TIMEOUT_S), num_workers=2) as hasty,
        hasty.streams([body]) as short,
        cluster.streams([body]) as long,
    ):
        for streams in (short, long):
            streams.wait_tokens(5, num_streams=1)
        cell.kill("decode")
        (failed,) = short.wait(TIMEOUT_S + 10)
        cell.serve_again("decode")
        (finished,) = long.wait(90)
    assert failed.status == 200
    assert failed.error is not None
    assert failed.error["code"] == "deadline_exceeded"
    assert not failed.done
    assert failed.finish_reason is None
    assert finished.complete
    assert failed.tokens == finished.tokens[: len(failed.tokens)]
    again = cluster.answer(body)
    assert again.answer == finished.answer
    cluster.wait_blocks_back()


def test_a_request_whose_gateway_died_is_computed_again_at_another_by_its_key(
    cell: ProxiedCell, cluster: Cluster, measured: Measured
) -> None:
    (body,) = bodies_of(1, max_tokens=300, seed=9)
    body |= {"model": cluster.model(), "stream": True}

    def ask(**changed: Any) -> tuple[int, str]:
        headers = {"Idempotency-Key": "order-7"}
        answer = cluster.client.post("/v1/completions", json=body | changed, headers=headers)
        return answer.status_code, answer.text

    def conflict(**changed: Any) -> str:
        status, text = ask(**changed)
        assert status == 409
        error = json.loads(text)["error"]
        assert error["code"] == "idempotency_conflict"
        return str(error["message"])

    with cell.gateway("dying", num_workers=2) as dying:
        headers = {"Idempotency-Key": "order-7"}
        with (
            dying.client.stream("POST", "/v1/completions", json=body, headers=headers) as first,
            pytest.raises(httpx.TransportError),
        ):
            lines = first.iter_lines()
            next(lines)
            assert "is still running" in conflict()
            assert "another body" in conflict(seed=1)
            cell.kill("dying")
            start_s = time.monotonic()
            list(lines)
        again = 409, ""
        while again[0] == 409:
            time.sleep(0.1)
            free_s = time.monotonic() - start_s
            again = ask()
    measured.at_most("until the key is free", free_s, REAPED_S, "s")
    assert again[0] == 200
    assert again[1].rstrip().endswith("[DONE]")
    assert "is done (length) with 300 output tokens" in conflict()
    cluster.wait_blocks_back()
