"""One supervised process: started, its output read, started again when it dies, stopped."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence

from services.cli.cluster.output import Output, ProcessLines
from services.cli.cluster.plan import ProcessSpec
from services.cli.cluster.restart_policy import RestartPolicy
from shared.errors import BatonError

OUTPUT_END_S = 0.5
"""how long to read on after a process ended: a grandchild may hold the pipe open"""


class StartError(BatonError):
    """A process ended by its own decision before it was ready; carries its exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Child:
    """Runs `command` + the spec's arguments, in a process group of its own.

    Life cycle: `run` starts the process and returns when it is not to be started again;
    `stop` makes `run` return. Before `was_ready` is set, an exit with a status above 0 is a
    StartError from `run`; later it is a reason to restart.
    """

    def __init__(
        self, spec: ProcessSpec, command: Sequence[str], output: Output, *, restart: bool
    ) -> None:
        self.spec = spec
        self.was_ready = False
        self.started_s = time.monotonic()
        self.ends: list[str] = []
        """how it ended each time that it was started again"""
        self._command = command
        self._output = output
        self._restart = restart
        self._policy = RestartPolicy()
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """None while no process runs."""
        return self._process.pid if self._process is not None else None

    async def run(self) -> None:
        while not self._stopping.is_set():
            lines = ProcessLines(self.spec.name, self._output)
            try:
                status = await self._run_once(lines)
            except OSError as error:  # no memory, no process, no descriptor: there may be again
                if not self.was_ready:
                    raise
                await self._wait_before_restart(f"{self.spec.name} cannot start: {error}")
                continue
            if self._stopping.is_set():
                return
            if not self.was_ready and status >= 0:
                raise self._start_error(status, lines)
            ended = f"{self.spec.name} {_describe(status)}"
            if lines.first_error:
                ended += f": {lines.first_error}"
            if not self._restart:
                self._output.say(f"{ended}; it is not started again (--restart never)")
                return
            self.ends.append(ended)
            await self._wait_before_restart(ended)

    async def stop(self, patience_s: float) -> None:
        """SIGTERM, after `patience_s` SIGKILL; nothing of the process group is left."""
        self._stopping.set()
        process = self._process
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(patience_s):
                await process.wait()
        except TimeoutError:
            self._output.say(f"{self.spec.name} did not stop in {patience_s:g} s; killed")
        self._kill_group(process.pid)
        await process.wait()

    async def _run_once(self, lines: ProcessLines) -> int:
        """The exit status; negative is the signal that ended it."""
        self.started_s = time.monotonic()
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("BATON_")
        }
        process = await asyncio.create_subprocess_exec(
            *self._command,
            "serve",
            self.spec.role,
            *("--parent-pid", str(os.getpid())),
            *self.spec.flags,
            env={**environment, **self.spec.environment, "PYTHONUNBUFFERED": "1"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            process_group=0,
        )
        self._process = process
        reading = asyncio.create_task(self._read(process, lines))
        try:
            if self._stopping.is_set():
                self._kill_group(process.pid)
            status = await process.wait()
            self._kill_group(process.pid)
            await asyncio.wait([reading], timeout=OUTPUT_END_S)
        finally:
            reading.cancel()
            self._process = None
        return status

    async def _read(self, process: asyncio.subprocess.Process, lines: ProcessLines) -> None:
        assert process.stdout is not None
        while received := await process.stdout.read(65536):
            lines.feed(received)
        lines.close()

    async def _wait_before_restart(self, ended: str) -> None:
        delay_s = self._policy.next_delay_s(time.monotonic())
        when = f" in {delay_s:.0f} s" if delay_s >= 1 else ""
        self._output.say(f"{ended}; starting it again{when}")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._stopping.wait()

    def _start_error(self, status: int, lines: ProcessLines) -> StartError:
        if lines.first_error:
            return StartError(lines.first_error, status or 1)
        for line in lines.last:
            sys.stderr.write(f"{self.spec.name} | {line}\n")
        text = f"{self.spec.name} {_describe(status)} before it was ready"
        if self._output.log_folder is not None:
            text += f"; its log is in {self._output.log_folder}"
        return StartError(text, 1)

    def _kill_group(self, group: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


def _describe(status: int) -> str:
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"ended with status {status}"
