"""`baton bench gateway` measures what it says: small runs of every part, and planted faults.

Its goals are not judged here: other work on the machine would decide."""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop

from services.cli.__main__ import main
from services.cli.bench.gateway import stream_cost
from services.cli.bench.gateway.cell import MeasuredCell, running_cell
from services.cli.bench.gateway.dispatch import redis_trips
from services.cli.bench.gateway.stream_cost import StreamLoad, measure_streams
from shared.state.embedded import EmbeddedRedis
from shared.state.keys import Keys
from shared.state.records import AdmittedRequest, Outcome, RequestState
from shared.state.redis_client import RedisClient
from shared.state.redis_records import ADMIT, FINISH, RedisRequestRecords
from tests.support.measured import Measured

pytestmark = pytest.mark.clock

SMALL = ("--streams", "16", "--workers", "4", "--step-ms", "20", "--seconds", "1.5")


def figures(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, dict[str, Any]]:
    code = main(["bench", "gateway", *SMALL, "--requests", "100", *flags, "--json", "-"])
    said = capsys.readouterr()
    lines = [json.loads(line) for line in said.out.splitlines()]
    disturbed = any(line.get("invalid") for line in lines)  # by other work on the machine
    assert code == int(disturbed), said.err
    assert lines[0]["kind"] == "environment"
    return {line["name"].strip(): line for line in lines[1:]}


def test_streams_redis_and_dispatch(capsys: pytest.CaptureFixture[str]) -> None:
    parts = ("streams", "rate", "redis", "dispatch")
    found = figures(capsys, *(word for part in parts for word in ("--part", part)))
    assert found["streams with an error"]["value"] == 0
    assert found["Redis round trips per request"]["value"] == 2
    added_ms = found["added latency p50"]["value"]
    assert 0.05 < added_ms < 20.0
    assert added_ms <= found["added latency p99"]["value"]
    # 16 streams, 50 tokens a second each, for about a second
    assert found["added latency p50"]["n"] > 400
    us, per_core = found["CPU per chunk"]["value"], found["SSE chunks/s per core"]["value"]
    assert 5.0 < us < 500.0
    assert per_core * us == pytest.approx(1e6, rel=0.01)
    scheduled_ms = found["body read to first chunk scheduled p50"]["value"]
    assert 0.1 < scheduled_ms < 50.0


class LateGateway:
    """Answers before Redis has FINISH, as the gateway does when Redis is slow."""

    def __init__(self, redis: EmbeddedRedis) -> None:
        self.redis = redis
        self._numbers = itertools.count()
        self._ask(load_scripts)

    def complete(self, prompt: Sequence[int], max_tokens: int) -> str:
        request = AdmittedRequest(f"r-{next(self._numbers)}.", "g", "t", "p", len(prompt), 0)
        outcome = Outcome(RequestState.DONE, "length", max_tokens, 0)
        self._ask(lambda client: RedisRequestRecords(client, Keys()).admit(request))

        def finish() -> None:
            self._ask(lambda client: RedisRequestRecords(client, Keys()).finish(request, outcome))

        threading.Timer(0.2, finish).start()
        return request.rid

    def _ask(self, question: Callable[[RedisClient], Coroutine[Any, Any, object]]) -> None:
        async def ask() -> None:
            async with RedisClient(self.redis.url) as client:
                await question(client)

        asyncio.run(ask())


async def load_scripts(client: RedisClient) -> None:
    for script in (ADMIT, FINISH):
        await client.command("SCRIPT", "LOAD", script.text)


def test_round_trips_after_the_answer_are_counted() -> None:
    with EmbeddedRedis() as redis:
        trips = redis_trips(cast(MeasuredCell, LateGateway(redis)), 5, num_tokens=4)
    assert trips.per_request == 2


def test_routing_and_the_path_without_sockets(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    profile = tmp_path / "profile.txt"
    found = figures(capsys, "--part", "routing", "--part", "path", "--profile", str(profile))
    assert "64 workers" in found["routing decision p99"]["note"]
    assert found["routing decision p50"]["value"] <= found["routing decision p99"]["value"]
    assert 2.0 < found["CPU per token without sockets"]["value"] < 200.0
    assert "1.00 writes per token" in found["CPU per token without sockets"]["note"]
    assert "frames.py" in profile.read_text()


@pytest.mark.alone
def test_a_gateway_that_stands_still_shows_as_added_latency(measured: Measured) -> None:
    """The detector's proof: the gateway is stopped for 150 ms while tokens come."""
    with running_cell("demo", 2) as cell:

        def stop_and_go() -> None:
            os.kill(cell.gateway_pid, signal.SIGSTOP)
            threading.Timer(0.15, os.kill, (cell.gateway_pid, signal.SIGCONT)).start()

        timer = threading.Timer(0.9, stop_and_go)
        timer.start()
        cost = uvloop.run(measure_streams(cell, StreamLoad(8, 100, 20.0), pin=False))
        timer.join()
    assert not cost.failed
    assert cost.gateway.waited_s < 0.1  # a stopped process waits for no core
    assert cost.added_s.maximum is not None
    measured.at_least("longest added latency", cost.added_s.maximum, 0.1, "s")
    median_s = cost.added_s.at(0.5)
    assert median_s is not None
    measured.at_most("median added latency", median_s, 0.05, "s")


def test_a_gateway_without_a_core_is_told_from_one_that_stands_still() -> None:
    """The other detector's proof: others keep the only core busy that the gateway has."""
    spin = [sys.executable, "-c", "while True: pass"]
    with running_cell("demo", 2) as cell, contextlib.ExitStack() as rivals:
        core = min(os.sched_getaffinity(0))
        for _ in range(6):
            rival = rivals.enter_context(subprocess.Popen(spin))  # noqa: S603 ourselves
            rivals.callback(rival.kill)
            os.sched_setaffinity(rival.pid, {core})
        # Few and long, so that a gateway without a core has opened them all before the first ends.
        cost = uvloop.run(measure_streams(cell, StreamLoad(12, 800, 10.0)))
    assert "had no core" in cost.fault
    assert not cost.stall


def test_a_disturbed_run_is_repeated_once_and_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stream_cost, "MAX_LATE_S", -1.0)
    assert main(["bench", "gateway", *SMALL, "--part", "streams", "--workers", "2"]) == 1
    output = capsys.readouterr()
    assert output.err.count("; once more") == 1
    assert "INVALID, measure again on a quiet machine: added latency p50" in output.err
    assert "INVALID: " in output.out
    assert "MISSED" not in output.out


def test_impossible_sizes_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "gateway", "--streams", "0"]) == 2
    assert "more than 0" in capsys.readouterr().err
