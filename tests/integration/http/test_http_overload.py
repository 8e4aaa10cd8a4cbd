"""A real gateway process without a worker, and one that is told to stop: 503, and when to return.

The failure guarded: a client that waits for nobody, or comes back to a gateway that is leaving.
"""

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from services.cli.cluster.ports import reserve_port
from tests.integration.http.raw_client import JSON_HEADER, head_bytes
from tests.integration.http.refusals import JSON_TYPE, check_error
from tests.support.cases.http_bodies import CHAT

LIMIT_S = 30.0
BODY = json.dumps({"model": "demo", "messages": [{"role": "user", "content": "hi"}]}).encode()


@pytest.fixture
def gateway(redis_url: str, tmp_path: Path) -> Iterator[tuple[int, "subprocess.Popen[bytes]"]]:
    """Port and process of a gateway nobody serves."""
    with reserve_port("127.0.0.1", 0) as holder, (tmp_path / "gateway.log").open("wb") as log:
        port = holder.getsockname()[1]
        command = [sys.executable, "-m", "services.cli", "serve", "gateway", "--redis", redis_url]
        process = subprocess.Popen(  # noqa: S603
            [*command, "--port", str(port)], stdout=log, stderr=log
        )
        try:
            wait_until_it_answers(port)
            yield port, process
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LIMIT_S)
            process.kill()


def wait_until_it_answers(port: int) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        with contextlib.suppress(OSError), closing(_connect(port)) as connection:
            connection.request("GET", "/health")
            assert connection.getresponse().status == 200
            return
        time.sleep(0.05)
    raise AssertionError("the gateway does not answer")


def _connect(port: int) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)


def check_unavailable(answer: http.client.HTTPResponse) -> str:
    content = answer.read()
    assert answer.status == 503, content
    check_error(content, {k.lower(): v for k, v in answer.getheaders()}, 503, "overloaded")
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.headers["connection"] == "close"
    message: str = json.loads(content)["error"]["message"]
    assert f"try again in {answer.headers['retry-after']} s" in message
    return message


def test_row_86_no_pool_and_a_draining_gateway(
    gateway: "tuple[int, subprocess.Popen[bytes]]",
) -> None:
    port, process = gateway
    with closing(_connect(port)) as connection:
        connection.request("POST", CHAT, BODY, JSON_TYPE)
        assert "no worker" in check_unavailable(connection.getresponse())
    # Half of this request arrives before the gateway is told to stop, the rest after that.
    with socket.create_connection(("127.0.0.1", port), LIMIT_S) as half:
        half.sendall(head_bytes("POST", CHAT, JSON_HEADER, f"content-length: {len(BODY)}"))
        half.sendall(BODY[:10])
        wait_until_it_answers(port)  # it has read what was sent before
        process.terminate()
        wait_until_refused(port)
        half.sendall(BODY[10:])
        answer = http.client.HTTPResponse(half)
        answer.begin()
        assert "no worker" in check_unavailable(answer)
        assert answer.headers["connection"] == "close"
    process.wait(LIMIT_S)


def wait_until_refused(port: int) -> None:
    """It takes no new connections: it knows that it has to stop."""
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        try:
            socket.create_connection(("127.0.0.1", port), LIMIT_S).close()
        except ConnectionRefusedError:
            return
        time.sleep(0.02)
    raise AssertionError("the gateway still listens")
