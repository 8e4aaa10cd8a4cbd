"""rediss://: a server that speaks only TLS, and a client that checks its certificate."""

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from shared.errors import StateUnavailableError
from shared.state.redis_client import RedisClient
from tests.rules.sources import ROOT
from tests.support.redis_server import ON_PATH, TLS, server_binary

pytestmark = [pytest.mark.anyio, pytest.mark.needs_redis(TLS)]

CERTIFICATE = ROOT / "tests" / "localhost.pem"
START_LIMIT_S = 10.0


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    options = {
        "port": 0,
        "tls-port": port,
        "bind": "127.0.0.1",
        "tls-cert-file": CERTIFICATE,
        "tls-key-file": CERTIFICATE,
        "tls-ca-cert-file": CERTIFICATE,
        "tls-auth-clients": "no",
        "dir": tmp_path,
        "save": "",
    }
    words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    server = subprocess.Popen(  # noqa: S603
        [server_binary(ON_PATH), *words], stdout=subprocess.DEVNULL
    )
    try:
        yield port
    finally:
        server.terminate()
        server.wait()


async def ping(url: str) -> object:
    """Asked until the server has started."""
    with anyio.fail_after(START_LIMIT_S):
        while True:
            try:
                async with RedisClient(url, timeout_s=1.0) as client:
                    return await client.command("PING")
            except StateUnavailableError:
                await anyio.sleep(0.02)


async def test_commands_travel_over_tls(port: int) -> None:
    assert await ping(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={CERTIFICATE}") == b"PONG"


async def test_a_server_that_nobody_vouches_for_is_refused(port: int) -> None:
    await ping(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={CERTIFICATE}")
    async with RedisClient(f"rediss://127.0.0.1:{port}/0", timeout_s=1.0) as stranger:
        with pytest.raises(StateUnavailableError):
            await stranger.command("PING")
