"""A cell whose processes are of two releases, one after the other replaced and put back, under
streams: each text is the one in peace."""

import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import Stream, Streams
from tests.support.next_release import NEXT, build_next_release
from tests.support.pairs.gateway_process import GatewayProcess
from tests.support.pairs.worker_process import ROOT, WorkerProcess, wait_for
from tests.support.redis_server import RedisServers

pytestmark = pytest.mark.clock

BODIES: list[dict[str, Any]] = [
    {
        "model": "demo",
        "prompt": list(range(1000 + at, 1100 + at)),
        "max_tokens": 120,
        "temperature": 0,
        "ignore_eos": True,
    }
    for at in range(4)
]
READY_S = 60.0
BREACH = re.compile(r"link closed \(|is hung up on|frame is refused|Traceback")
"""what either end logs when the other says something that it cannot take"""


class RollingCell:
    """Gateways and workers by name, of this release and of the next."""

    def __init__(self, folder: Path, redis_url: str, ends: ExitStack) -> None:
        self._folder = folder
        self._redis_url = redis_url
        self._ends = ends
        self._next = build_next_release(folder / "next")
        self._workers: dict[str, WorkerProcess] = {}
        self._gateways: list[GatewayProcess] = []

    def start(self, role: str, name: str, *, later: bool = False) -> None:
        root = self._next if later else ROOT
        flags = {"redis": self._redis_url, "kv_blocks": 512, "drain_s": 20}
        worker = WorkerProcess(self._folder, role, name, root, **flags)
        self._workers[name] = worker
        self._ends.callback(worker.kill)

    def gateway(self, name: str, *, later: bool = False) -> GatewayProcess:
        root = self._next if later else ROOT
        gateway = GatewayProcess(self._redis_url, self._folder / f"{name}.log", root)
        self._gateways.append(gateway)
        self._ends.callback(gateway.kill)
        return gateway

    def stop(self, name: str) -> None:
        """As a rollout does: it drains, and ends by itself."""
        worker = self._workers[name]
        worker.io.send_signal(signal.SIGTERM)
        assert worker.wait(30.0) == 0, worker.errors()

    def logs(self) -> str:
        """Of all processes that there were."""
        texts = [worker.errors() for worker in self._workers.values()]
        return "".join([*texts, *(gateway.log_path.read_text() for gateway in self._gateways)])


@pytest.fixture
def cell(redis_servers: RedisServers, tmp_path: Path) -> Iterator[RollingCell]:
    with ExitStack() as ends:
        yield RollingCell(tmp_path, redis_servers.url(), ends)


def linked(gateway: GatewayProcess) -> dict[str, int]:
    """Worker -> the version that is spoken with it."""
    answer = gateway.get("/v1/baton/status")
    workers = answer[1]["workers"] if answer else []
    return {item["id"]: item["protocol"] for item in workers if item["state"] == "ready"}


def until_linked(gateway: GatewayProcess, **versions: int) -> None:
    wait_for(lambda: linked(gateway) == versions or None, READY_S)


def answers(gateway: GatewayProcess, cell: RollingCell, *stopped: str) -> list[Stream]:
    """Four streams; the workers that are named end while they run."""
    with Streams(gateway.url, BODIES) as streams:
        if stopped:
            streams.wait_tokens(10, len(BODIES))
        for name in stopped:
            cell.stop(name)
        seen = streams.wait(60)
    assert all(stream.complete for stream in seen), seen
    return seen


def pairs(gateway: GatewayProcess) -> set[tuple[str, str]]:
    """Prefill and decode workers between which KV has gone."""
    answer = gateway.get("/v1/baton/status")
    assert answer is not None
    return {(pair["prefill"], pair["decode"]) for pair in answer[1]["hand_overs"] if pair["num"]}


def test_an_upgrade_and_the_way_back_break_no_stream_and_change_no_text(cell: RollingCell) -> None:
    this, later = NEXT
    old = cell.gateway("old")
    cell.start("prefill", "p-old")
    cell.start("decode", "d-old")
    until_linked(old, **{"p-old": this, "d-old": this})
    peace = [stream.answer for stream in answers(old, cell)]

    cell.start("decode", "d-new", later=True)
    new = cell.gateway("new", later=True)
    until_linked(old, **{"p-old": this, "d-old": this, "d-new": this})
    until_linked(new, **{"p-old": this, "d-old": this, "d-new": later})
    assert [stream.answer for stream in answers(old, cell, "d-old")] == peace
    assert [stream.answer for stream in answers(new, cell)] == peace

    cell.start("prefill", "p-new", later=True)
    until_linked(new, **{"p-old": this, "p-new": later, "d-new": later})
    assert [stream.answer for stream in answers(new, cell, "p-old")] == peace

    cell.start("decode", "d-back")
    until_linked(old, **{"p-new": this, "d-new": this, "d-back": this})
    assert [stream.answer for stream in answers(new, cell, "d-new")] == peace
    assert [stream.answer for stream in answers(old, cell)] == peace

    mixed = {("p-old", "d-new"), ("p-new", "d-back")}
    assert mixed <= pairs(old) | pairs(new)
    assert not BREACH.search(cell.logs())
