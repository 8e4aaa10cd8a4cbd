"""The io process's end of the fork server: starts it, asks it for an engine, hears how that ends.

Free of torch, which the server imports. All calls on the event loop.
"""

import asyncio
import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence

from shared.settings.groups import Settings
from shared.settings.load import to_environment
from shared.settings.setting import PREFIX
from shared.worker.identity import WorkerRole

ASK = b"\0"
ANSWER = struct.Struct("<i")
"""a pid, or an exit status as `subprocess` gives it"""


class ForkedProcess:
    """An engine, from the moment that the server is asked for it."""

    def __init__(self, abandon: Callable[[], None]) -> None:
        """`abandon`: ends the server that may be about to fork it."""
        self.pid: int | None = None
        """None: it has not been forked, as far as is known"""
        self._abandon = abandon
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def wait(self) -> int:
        """Its exit status, once it has ended."""
        return await asyncio.shield(self._ended)

    def send_signal(self, number: signal.Signals) -> None:
        """Nothing once it has ended. One that is not there yet never will be."""
        if self._ended.done():
            return
        if self.pid is None:
            self._abandon()
            return
        with contextlib.suppress(ProcessLookupError):  # its status is on its way
            os.kill(self.pid, number)

    def note(self, answer: int) -> None:
        """What the server says: first the pid, then the exit status."""
        if self.pid is None:
            self.pid = answer
        elif not self._ended.done():
            self._ended.set_result(answer)

    def lose(self) -> None:
        """The server is gone, and the kernel ends what it forked."""
        if not self._ended.done():
            self._ended.set_result(-signal.SIGKILL)


class ForkServer:
    """Runs from the first `fork` to `close`; started again if something else ended it."""

    module = "shared.worker.fork_server"
    """what it runs"""

    def __init__(self, settings: Settings, role: WorkerRole) -> None:
        """Both of the engines."""
        self._settings = settings
        self._role = role
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._engine: ForkedProcess | None = None

    def fork(self, descriptors: Sequence[int]) -> ForkedProcess:
        """Ask for an engine that has these descriptors; the one before must have ended. OSError if
        no process can be made, or none asked."""
        if self._process is None:
            self._process = self._start()
        assert self._socket is not None
        self._engine = ForkedProcess(self._process.kill)
        socket.send_fds(self._socket, [ASK], descriptors)
        return self._engine

    def close(self) -> None:
        """End the server, and with it the engine."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._engine is not None:
            self._engine.lose()
            self._engine = None

    def _start(self) -> subprocess.Popen[bytes]:
        self._socket, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        asyncio.get_running_loop().add_reader(self._socket, self._receive)
        command = [sys.executable, "-m", self.module]
        with theirs:
            return subprocess.Popen(  # noqa: S603
                [*command, str(theirs.fileno()), self._role, str(os.getpid())],
                pass_fds=[theirs.fileno()],
                env=self._environment(),
                process_group=0,  # a terminal's Ctrl-C is for the io process, which ends this one
            )

    def _environment(self) -> dict[str, str]:
        """This process's, with these settings only. Numbers of threads are read when libraries are
        loaded; OpenBLAS, which is numpy's, would start its own then."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        threads = str(self._settings.engine.threads)
        limits = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        settings = to_environment(*self._settings.groups)
        return {**kept, **settings, **limits, "OPENBLAS_NUM_THREADS": "1"}

    def _receive(self) -> None:
        assert self._socket is not None and self._engine is not None
        try:
            answer = self._socket.recv(ANSWER.size)
        except BlockingIOError:
            return
        except OSError:
            answer = b""
        if answer:
            self._engine.note(*ANSWER.unpack(answer))
        else:
            self.close()
