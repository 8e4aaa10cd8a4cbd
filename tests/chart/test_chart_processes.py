"""What only a pod would run, run here: the probes' paths, `helm test`, and the chart's Redis."""

import base64
import hashlib
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx
import psutil
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.chart.process_rules import PROBED
from tests.chart.release import render, secrets_script
from tests.support.fakes.served_app import ServedApp, serve_app
from tests.support.models.text_models import byte_level_tokenizer, write_text_model
from tests.support.redis_server import ON_PATH, server_binary
from tests.support.settings import settings_with

HOST = "127.0.0.1"
START_LIMIT_S = 10.0


@pytest.fixture
async def gateway(tmp_path: Path, anyio_backend: str) -> AsyncIterator[ServedApp]:
    tokenizer = byte_level_tokenizer()
    async with serve_app(write_text_model(tmp_path, tokenizer), tokenizer) as served:
        served.answer("hello world")
        yield served


async def run_helm_test(
    url: str,
    timeout_s: float,
    api_keys: dict[str, str] | None = None,
    key_file: Path | str = "",
    admin_url: str = "",
) -> "subprocess.CompletedProcess[bytes]":
    """The test pod's own command, on another gateway. `key_file`: what is mounted here."""
    (container,) = dict(render({"apiKeys": api_keys or {}}).pods())["test"]["spec"]["containers"]
    script, _, prompt, _, mounted, _ = container["args"]
    assert bool(mounted) == bool(key_file)
    assert container["command"] == ["python3", "-c"]
    command = [sys.executable, "-c", script, url, prompt, str(timeout_s), str(key_file)]
    return await anyio.run_process([*command, admin_url or url], check=False)


@pytest.mark.anyio
async def test_helm_test_needs_a_ready_gateway_and_an_answer(gateway: ServedApp) -> None:
    passed = await run_helm_test(gateway.url, 20)
    assert (passed.returncode, passed.stderr) == (0, b"")
    assert b"tokens" in passed.stdout
    gateway.door.is_ready = False
    nobody = f"http://{HOST}:1"  # no Service of clients leads to a gateway that is not ready
    failed = await run_helm_test(nobody, 0, admin_url=gateway.url)
    assert failed.returncode == 1
    assert b"is not ready" in failed.stderr
    assert b"FAIL  gateway: not ready (redis: ok): no decode worker is linked" in failed.stdout


@pytest.mark.anyio
async def test_helm_test_asks_with_a_key_or_for_readiness(tmp_path: Path) -> None:
    keys, key = tmp_path / "keys.toml", tmp_path / "key"
    keys.write_text(f'[[keys]]\ntenant = "t"\nsha256 = "{hashlib.sha256(b"k").hexdigest()}"\n')
    key.write_text("k\n")
    settings = settings_with(api_keys_file=str(keys))
    tokenizer = byte_level_tokenizer()
    directory = write_text_model(tmp_path, tokenizer)
    async with serve_app(directory, tokenizer, settings) as app:
        app.answer("hello")
        named = {"existingSecret": "s", "testKey": "k"}
        asked = await run_helm_test(app.url, 20, named, key)
        assert (asked.returncode, b"tokens" in asked.stdout) == (0, True)
        only_ready = await run_helm_test(app.url, 20, {"existingSecret": "s"})
        assert (only_ready.returncode, only_ready.stdout) == (0, b"ready\n")
        assert len(app.door.requests) == 1
        key.write_text("another\n")
        refused = await run_helm_test(app.url, 20, named, key)
        assert refused.returncode == 1
        assert b"/v1/models answers 401: " in refused.stderr


@pytest.mark.anyio
async def test_the_gateway_answers_what_its_probes_ask(gateway: ServedApp) -> None:
    async with httpx.AsyncClient(base_url=gateway.url) as client:
        assert {(await client.get(path)).status_code for path in PROBED} == {200}


@dataclass
class RedisPod:
    """The chart's Redis container as a process, in a folder instead of an image."""

    secret: dict[str, str]
    container: dict[str, Any]
    process: psutil.Process
    port: int

    def client(self, password: str | None) -> redis.Redis:
        return redis.Redis(HOST, self.port, password=password, retry=Retry(NoBackoff(), 0))


@pytest.fixture
def redis_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[RedisPod]:
    """With the password that the hook makes, or the one that a test is parametrized with."""
    monkeypatch.setenv("PATH", str(server_binary(ON_PATH).parent), prepend=":")
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
    release = render({"redis": {"port": port}})
    (container,) = dict(release.pods())["redis"]["spec"]["containers"]
    config = release.named("ConfigMap", "rel-baton-redis")["data"]["redis.conf"]
    config = config.replace("bind * -::*", f"bind {HOST}").replace("/run/", f"{tmp_path}/run/")
    for folder in ("run/redis", "etc/redis", "etc/redis-secret"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "etc/redis/redis.conf").write_text(config)
    (script,) = container["args"]
    script = script.replace("/etc/", f"{tmp_path}/etc/").replace("/run/", f"{tmp_path}/run/")
    made = secrets_script()["manifest"]("rel-baton-cell", {}, "rel-baton-redis")["data"]
    secret = {key: base64.b64decode(text).decode() for key, text in made.items()}
    secret["redis-password"] = getattr(request, "param", secret["redis-password"])
    pod = RedisPod(secret, container, psutil.Process(), port)
    (tmp_path / "etc/redis-secret/password").write_text(secret["redis-password"])
    with subprocess.Popen(  # noqa: S603 the chart's own command
        [*container["command"], script], stdout=subprocess.DEVNULL
    ) as process:
        pod.process = psutil.Process(process.pid)
        try:
            _wait_until_open(port)
            yield pod
        finally:
            process.terminate()


def _wait_until_open(port: int) -> None:
    deadline_s = time.monotonic() + START_LIMIT_S
    while True:
        try:
            socket.create_connection((HOST, port), timeout=1).close()
        except OSError:
            assert time.monotonic() < deadline_s, "Redis did not start"
        else:
            return


def test_redis_asks_for_a_password_nobody_can_see(redis_pod: RedisPod, tmp_path: Path) -> None:
    password = redis_pod.secret["redis-password"]
    with redis_pod.client(None) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()
    with redis_pod.client(password) as client:
        assert client.ping()
        limits = client.config_get("maxmemory*")
        assert (limits["maxmemory-policy"], limits["maxmemory"]) == ("noeviction", str(200 * 2**20))
    shown = str(redis_pod.process.environ()) + str(redis_pod.process.cmdline())
    assert password not in shown
    assert (tmp_path / "run/redis/redis.conf").stat().st_mode & 0o077 == 0
    assert redis_pod.secret["redis-url"] == f"redis://:{password}@rel-baton-redis:6379/0"
    service = render({"redis": {"port": redis_pod.port}}).named("Service", "rel-baton-redis")
    assert [port["port"] for port in service["spec"]["ports"]] == [6379]


@pytest.mark.parametrize("redis_pod", ["a\"b\\c &$d'e"], indirect=True)
def test_a_password_of_ones_own_may_have_any_character(redis_pod: RedisPod) -> None:
    with redis_pod.client(redis_pod.secret["redis-password"]) as client:
        assert client.ping()


def test_redis_ends_at_sigterm_and_its_probe_needs_no_password(redis_pod: RedisPod) -> None:
    probe = redis_pod.container["livenessProbe"]["exec"]["command"]
    assert subprocess.run(probe, check=False, capture_output=True).returncode == 0  # noqa: S603
    redis_pod.process.terminate()
    redis_pod.process.wait(5)
    assert subprocess.run(probe, check=False, capture_output=True).returncode == 1  # noqa: S603
