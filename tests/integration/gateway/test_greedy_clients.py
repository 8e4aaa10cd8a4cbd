"""A gateway process under clients that take what they can get (B7, B11, B12), all at once.

The failure guarded: a client without any right shuts the others out, fills the memory, or makes
their deadlines late. Measured in the gateway's process: its memory, and how long `/health` takes
on the clients' port while an honest request keeps its deadline.
"""

import contextlib
import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from services.gateway.http.byte_budget import STILL_S
from tests.support.fakes.mock_cell import MockCell, mock_cell

NUM_IDLE = int(os.environ.get("GREEDY_IDLE", "4200"))
NUM_BODIES = int(os.environ.get("GREEDY_BODIES", "120"))
NUM_TEXTS = int(os.environ.get("GREEDY_TEXTS", "20"))
MAX_RSS_BYTES = 512 * 2**20
MAX_HEALTH_S = 0.05
DEADLINE_S = 5.0
WATCHED_S = float(os.environ.get("GREEDY_S", "3"))
GIVE_WAY_S = 15.0
"""sooner than a body's time is up, which would end these too"""
LIMIT_S = 60.0
LONG_PROMPT = "word " * 3600
"""over 16 KiB: it is read by a process, as the greedy texts are"""


@pytest.fixture
def cell(redis_url: str, tmp_path: Path) -> Iterator[MockCell]:
    with mock_cell(redis_url, tmp_path) as made:
        yield made


@contextlib.contextmanager
def greedy(kind: str, port: int, number: int) -> Iterator["subprocess.Popen[bytes]"]:
    command = [
        sys.executable,
        "-m",
        "tests.support.fakes.greedy_clients",
        kind,
        str(port),
        str(number),
    ]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe)  # noqa: S603
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ask(port: int, path: str, body: bytes | None = None, **headers: str) -> tuple[int, float]:
    """Status, and seconds from the connection's start to the end of the answer."""
    began_s = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    with contextlib.closing(connection):
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("POST" if body else "GET", path, body, named)
        response = connection.getresponse()
        response.read()
        return response.status, time.monotonic() - began_s


def wait_until_bodies_give_way(status: Callable[[], int]) -> None:
    """While the bodies that fill the budget still come, and until each has been still for STILL_S,
    a newcomer may get 503, which tells it when to come back."""
    begin_s = served_since_s = time.monotonic()
    while time.monotonic() - served_since_s < 2 * STILL_S:
        found = status()
        assert found in (200, 503)
        if found == 503:
            served_since_s = time.monotonic()
            assert served_since_s - begin_s < GIVE_WAY_S, "bodies that stopped keep others out"


@pytest.mark.clock
@pytest.mark.alone
def test_honest_clients_are_served_beside_greedy_ones(cell: MockCell) -> None:
    port = urlsplit(cell.url).port
    assert port is not None
    body = {"model": "demo", "prompt": [7] * 40, "max_tokens": 4, "ignore_eos": True}
    honest = json.dumps(body).encode()
    long_text = json.dumps({"prompt": LONG_PROMPT}).encode()
    headers = {"content_type": "application/json", "x_baton_timeout_s": str(DEADLINE_S)}
    health_s, served, statuses = [], [], set()
    rss_bytes = 0
    with contextlib.ExitStack() as stack:
        for kind, number in (("idle", NUM_IDLE), ("bodies", NUM_BODIES)):
            attacker = stack.enter_context(greedy(kind, port, number))
            assert attacker.stdout is not None
            assert attacker.stdout.readline().startswith(b"there")
        wait_until_bodies_give_way(lambda: ask(port, "/tokenize", long_text, **headers)[0])
        stack.enter_context(greedy("texts", port, NUM_TEXTS))
        until_s = time.monotonic() + WATCHED_S
        while time.monotonic() < until_s:
            status, took_s = ask(port, "/health")
            assert status == 200
            health_s.append(took_s)
            statuses.add(ask(port, "/v1/completions", honest, **headers)[0])
            status, took_s = ask(port, "/tokenize", long_text, **headers)
            statuses.add(status)
            served.append(took_s)
            rss_bytes = max(rss_bytes, psutil.Process(cell.gateway.pid).memory_info().rss)
    health_s.sort()
    p95_s = health_s[int(0.95 * (len(health_s) - 1))]
    found = f"health p50 {health_s[len(health_s) // 2]:.3f} s, p95 {p95_s:.3f} s; "
    found += f"long text at most {max(served):.2f} s; RSS {rss_bytes / 2**20:.0f} MiB; {statuses}"
    sys.stdout.write(found + "\n")
    assert statuses == {200}, found
    assert max(served) < DEADLINE_S, found
    assert rss_bytes <= MAX_RSS_BYTES, found
    assert p95_s <= MAX_HEALTH_S, found
