"""The io process's handle on its engine process."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from shared.device_type import device_type
from shared.errors import BatonError
from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory
from shared.kv.share import KVShare
from shared.link.connection import Connection
from shared.mover.client import MoverClient, data_socket_pair
from shared.mover.rank_movers import RankMovers
from shared.settings.groups import Settings
from shared.worker.channel import CHANNEL_CODEC, Beat, Command, Event, Ready, receive_memory
from shared.worker.fork_client import ForkedProcess, ForkServer
from shared.worker.outside_kill import count_oom_kills, is_outside_kill

LISTEN_S = 0.5
"""between two questions whether the engine lives"""
STALL_S = 2.5
"""an engine that was silent for so long is given no work, and what waits for it goes elsewhere"""
STALL_STEPS = 10
"""on a GPU no sooner than after as many steps"""
SILENT_STEPS = 20
"""a GPU that has not ended a step in the time of as many hangs"""
LAST_WORDS_S = 1.0
"""until what an engine that ended has sent is read: a socket that nobody has any more"""
STOP_LIMIT_S = 1.0
"""an engine that hangs does not keep this process from ending"""


ExitCause = Literal["itself", "killed", "unknown"]
"""itself: what ran there may be to blame; killed: somebody else's SIGKILL ended it, and not the
kernel's for lack of memory: nothing that ran there is"""


class EngineExitError(BatonError):
    """The engine process ended or hangs; its exit status is the worker's, should that end too."""

    def __init__(self, message: str, status: int, cause: ExitCause = "unknown") -> None:
        super().__init__(message)
        self.exit_code = status if status > 0 else 1
        self.cause = cause


class EngineClient:
    """Has the engine forked, maps its KV memory, sends commands and hands out events."""

    def __init__(self, settings: Settings, server: ForkServer) -> None:
        """`server`: stays the caller's."""
        self._settings = settings
        self._server = server
        self._on_cpu = device_type(settings.compute.device) == "cpu"
        self._process: ForkedProcess | None = None
        self._connection: Connection | None = None
        self.on_event: Callable[[Event], None] = lambda event: None
        """runs on the event loop, in the order the engine reported"""
        self.on_stall: Callable[[bool], None] = lambda stalled: None
        """runs on the event loop; False: it has answered since"""
        self._ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self._num_events = 0
        self._heard = asyncio.Event()
        """all that the engine will ever say"""
        self.memory: KVMemory | None = None
        self._movers: list[MoverClient] = []
        """of each rank, from `start` to `stop`"""
        self.mover: MoverClient | RankMovers | None = None
        """copies and digests blocks in the engine's processes; all of them, once started"""
        self.pools: list[int] = []
        """descriptors of each rank's pool that other workers map, where that is not `memory`;
        closed by `stop`"""

    async def start(self) -> Ready:
        """Returns once the model is loaded. EngineExitError with the engine's own exit code."""
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        pairs = [data_socket_pair() for _ in range(self._settings.compute.tp)]
        try:
            sockets = [theirs, *(answers for _, answers in pairs)]
            self._process = self._server.fork([sock.fileno() for sock in sockets])
        finally:
            for sock in (theirs, *(answers for _, answers in pairs)):
                sock.close()
        self._movers = [MoverClient(asks) for asks, _ in pairs]
        try:
            fd, self.pools = await loop.run_in_executor(None, receive_memory, ours)
            ours.setblocking(False)
            _, self._connection = await loop.create_unix_connection(
                lambda: Connection(self._receive, self._lose, codec=CHANNEL_CODEC), sock=ours
            )
            ready = await self._ready
        except (BatonError, OSError) as error:
            ours.close()
            raise EngineExitError(str(error), await self.wait()) from None
        self.memory = KVMemory(ready.layout, ready.num_blocks, fd, ready.arena_bytes)
        self.mover = _together(self._movers, ready.layout)
        return ready

    @property
    def pid(self) -> int:
        assert self._process is not None and self._process.pid is not None
        return self._process.pid

    def send(self, command: Command) -> None:
        """Queue a command; the engine applies it before its next step."""
        if self._connection is not None:
            self._connection.send(command)

    async def wait(self) -> int:
        """The engine's exit status, once it has ended."""
        assert self._process is not None
        return await self._process.wait()

    async def failure(self, step_s: float) -> EngineExitError:
        """Returns once the engine has ended, or hangs: it answers nothing, nor does it compute.
        `step_s`: what its longest step is predicted to take.

        Counts how often this process listened, not the time: after a machine stood still, nobody
        is silent yet."""
        ended = asyncio.create_task(self.wait())
        silence_s, stall_s = self._settings.engine.silence_s, STALL_S
        if not self._on_cpu:
            silence_s = silence_s and max(silence_s, SILENT_STEPS * step_s)
            stall_s = max(stall_s, STALL_STEPS * step_s)
        num_silent, was_stalled = 0, False
        num_oom_kills = count_oom_kills()
        while not ended.done():
            if silence_s and num_silent * LISTEN_S >= silence_s:
                assert self._process is not None
                # Its movers may be stuck as well, and pulls wait for them.
                self._process.send_signal(signal.SIGKILL)
                who = f"the engine process (pid {self.pid})"
                how_long = f"{silence_s:.3g} s (--engine-silence-s)"
                return EngineExitError(f"{who} answered nothing for {how_long}", 1)
            before = self._signs_of_life()
            num_oom_kills = count_oom_kills()
            self.send(Beat())
            await asyncio.wait({ended}, timeout=LISTEN_S)
            num_silent = num_silent + 1 if self._signs_of_life() == before else 0
            is_stalled = num_silent * LISTEN_S >= stall_s
            if is_stalled != was_stalled:
                was_stalled = is_stalled
                self.on_stall(is_stalled)
        status = ended.result()
        text = f"the engine process ended with status {status}"
        killed = is_outside_kill(status, num_oom_kills, count_oom_kills())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await self._heard.wait()
        return EngineExitError(text, status, _cause(status, killed=killed))

    async def stop(self) -> None:
        """Close the channel and end the engine, whatever it does."""
        for mover in self._movers:
            mover.close()
        while self.pools:
            os.close(self.pools.pop())
        if self._connection is not None:
            self._connection.abort()
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(STOP_LIMIT_S):
                    await self.wait()
            except TimeoutError:
                self._process.send_signal(signal.SIGKILL)
                await self.wait()

    def _signs_of_life(self) -> tuple[int, int]:
        """Events that came, and clock ticks that the engine's first thread computed: a step on a
        CPU may take long. A thread that waits for a GPU ticks too, so there that is no sign."""
        num_ticks = 0
        if self._on_cpu:
            with contextlib.suppress(OSError):  # it has just ended
                stat = Path(f"/proc/{self.pid}/task/{self.pid}/stat").read_bytes()
                user, system = stat.rpartition(b")")[2].split()[11:13]
                num_ticks = int(user) + int(system)
        return self._num_events, num_ticks

    def _receive(self, _: Connection, event: Event) -> None:
        self._num_events += 1
        if isinstance(event, Ready):
            self._ready.set_result(event)
        else:
            self.on_event(event)

    def _lose(self, _: Connection, __: Exception | None) -> None:
        self._heard.set()
        if not self._ready.done():
            self._ready.set_exception(EngineExitError("the engine ended while starting", 1))


def _cause(status: int, *, killed: bool) -> ExitCause:
    if killed:
        return "killed"
    return "itself" if status else "unknown"


def _together(movers: Sequence[MoverClient], layout: KVLayout) -> MoverClient | RankMovers:
    """`layout`: of whole blocks."""
    if len(movers) == 1:
        return movers[0]
    return RankMovers(movers, [KVShare(layout, rank, len(movers)) for rank in range(len(movers))])
