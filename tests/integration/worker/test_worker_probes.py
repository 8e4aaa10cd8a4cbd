"""The probes of a worker: what a kubelet asks, what it is told, and what it is never shown."""

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from shared.errors import SettingsError
from shared.settings.load import load_settings
from shared.worker.probe_server import MAX_CALLERS, MAX_REQUEST_BYTES, ProbeServer
from tests.support.models.tiny_model import TINY, write_checkpoint
from tests.support.pairs.worker_process import WorkerProcess
from tests.support.redis_server import RedisServers

pytestmark = pytest.mark.anyio
HOST = "127.0.0.1"


class Probed:
    """A listening ProbeServer and what the worker behind it says of itself."""

    def __init__(self) -> None:
        self.unready = "no KV canary has come yet"
        self.trouble = ""
        self.server = ProbeServer(lambda: self.unready, lambda: self.trouble)
        self.port = 0

    async def ask(self, line: str) -> str:
        """The status line of the answer; empty when hung up on."""
        return await ask(self.port, f"{line}\r\nhost: x\r\n\r\n".encode())


async def ask(port: int, request: bytes) -> str:
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(request)
    try:
        answer = await reader.read()
    except ConnectionResetError:
        answer = b""
    finally:
        writer.close()
    return answer.decode().partition("\r\n")[0]


@pytest.fixture
async def probed() -> AsyncIterator[Probed]:
    probed = Probed()
    probed.port = await probed.server.start(HOST, 0)
    yield probed
    await probed.server.close()


async def test_health_and_ready_are_two_questions(probed: Probed) -> None:
    assert await probed.ask("GET /health HTTP/1.1") == "HTTP/1.1 200 OK"
    assert await probed.ask("GET /ready HTTP/1.1") == "HTTP/1.1 503 Service Unavailable"
    probed.unready = ""
    assert await probed.ask("GET /ready HTTP/1.1") == "HTTP/1.1 200 OK"


async def test_health_names_the_loop_that_fails(probed: Probed) -> None:
    probed.trouble = "registration fails for 31 s (TypeError)"
    reader, writer = await asyncio.open_connection(HOST, probed.port)
    writer.write(b"GET /health HTTP/1.1\r\n\r\n")
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    assert head.startswith("HTTP/1.1 503 ")
    assert body == probed.trouble


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("GET / HTTP/1.1", "HTTP/1.1 404 Not Found"),
        ("GET /health/../x HTTP/1.1", "HTTP/1.1 404 Not Found"),
        ("POST /ready HTTP/1.1", "HTTP/1.1 400 Bad Request"),
        ("", "HTTP/1.1 400 Bad Request"),
        ("x" * 2 * MAX_REQUEST_BYTES, ""),
    ],
)
async def test_anything_else_is_refused(probed: Probed, line: str, answer: str) -> None:
    assert await probed.ask(line) == answer
    assert await probed.ask("GET /health HTTP/1.1") == "HTTP/1.1 200 OK"


async def test_silent_callers_are_few(probed: Probed) -> None:
    silent = [await asyncio.open_connection(HOST, probed.port) for _ in range(MAX_CALLERS)]
    assert await probed.ask("GET /health HTTP/1.1") == ""
    for _, writer in silent:
        writer.close()
        await writer.wait_closed()
    assert await until(probed.port, b"GET /health HTTP/1.1\r\n\r\n", "") == "HTTP/1.1 200 OK"


async def test_a_worker_is_ready_once_listed_and_shows_no_secret(
    tmp_path: Path, redis_servers: RedisServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(tmp_path / "model", TINY)
    url = redis_servers.url()
    (tmp_path / "url").write_text(f"{url}\n")
    (tmp_path / "kv").write_text("hidden-salt")
    monkeypatch.setenv("BATON_REDIS_FILE", str(tmp_path / "url"))
    monkeypatch.setenv("BATON_KV_SECRET_FILE", str(tmp_path / "kv"))
    worker = WorkerProcess(tmp_path, "decode", model=tmp_path / "model", probe_port=free_port())
    try:
        await worker.entry(url)
        port = int(psutil.Process(worker.io.pid).cmdline()[-1])
        assert await ask(port, b"GET /health HTTP/1.1\r\n\r\n") == "HTTP/1.1 200 OK"
        # The registry's entry is a moment ahead of the worker's own knowledge of it.
        answer = await until(port, b"GET /ready HTTP/1.1\r\n\r\n", "Service Unavailable")
        assert answer == "HTTP/1.1 200 OK"
        for process in (psutil.Process(worker.io.pid), worker.engine()):
            shown = str(process.environ()) + str(process.cmdline())
            assert url not in shown
            assert "hidden-salt" not in shown
    finally:
        worker.kill()


async def until(port: int, request: bytes, passing: str) -> str:
    """The first answer that does not end like `passing`."""
    async with asyncio.timeout(10):
        answer = await ask(port, request)
        while answer.endswith(passing) if passing else not answer:
            answer = await ask(port, request)
    return answer


def free_port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def test_a_secret_in_a_file_is_read_once_and_never_beside_another(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("salt\n")
    environ = {"BATON_KV_SECRET_FILE": str(file)}
    assert load_settings({}, environ).kv.secret == file.read_text().strip()
    with pytest.raises(SettingsError, match="both given"):
        load_settings({}, {**environ, "BATON_KV_SECRET": "x"})
    with pytest.raises(SettingsError, match="BATON_REDIS_FILE: cannot read"):
        load_settings({}, {"BATON_REDIS_FILE": str(tmp_path / "none")})
    with pytest.raises(SettingsError, match="names no setting"):
        load_settings({}, {"BATON_MODEL_FILE": str(file)})
