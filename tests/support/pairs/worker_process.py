"""One worker as `baton serve` runs it: its real processes, a link to them, and their end."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import psutil

from shared.link.link import Link
from shared.protocol import Assign, Attempt, Hello, Message, Sampling, Work
from shared.state.keys import Keys
from shared.state.redis_client import RedisClient
from shared.state.redis_registry import RedisWorkerRegistry
from shared.state.registry import WorkerEntry
from tests.support.pairs.worker_tree import find_engine

ROOT = Path(__file__).parents[3]
START_LIMIT_S = 60.0
POLL_S = 0.01

Found = TypeVar("Found")


class WorkerProcess:
    """`python -m services.cli serve ROLE`, with its error output in a file; of the checkout at
    `root`."""

    def __init__(
        self, folder: Path, role: str, worker_id: str = "", root: Path = ROOT, **flags: object
    ) -> None:
        self.worker_id = worker_id or f"{role}-{uuid4().hex[:8]}"
        self.error_path = folder / f"{self.worker_id}-{uuid4().hex[:4]}.err"
        arguments = {"worker-id": self.worker_id, **flags}
        command = [sys.executable, "-m", "services.cli", "serve", role]
        for name, value in arguments.items():
            command += [f"--{name.replace('_', '-')}", str(value)]
        with self.error_path.open("wb") as errors:
            self.io = subprocess.Popen(  # noqa: S603
                command, cwd=root, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors
            )

    def engine(self) -> psutil.Process:
        """The engine process, once it was started."""
        return wait_for(lambda: find_engine(self.io.pid))

    async def entry(self, redis_url: str, after: WorkerEntry | None = None) -> WorkerEntry:
        """What the registry says of this process, once it registered; of its next incarnation where
        one is given."""
        former = after.incarnation if after is not None else ""
        async with RedisClient(redis_url) as client:
            registry = RedisWorkerRegistry(client, Keys())
            deadline_s = time.monotonic() + START_LIMIT_S
            while time.monotonic() < deadline_s:
                assert self.io.poll() is None, self.errors()
                for entry in await all_entries(registry):
                    known = (entry.worker_id, entry.pid) == (self.worker_id, self.io.pid)
                    if known and entry.incarnation != former:
                        return entry
                await asyncio.sleep(POLL_S)
        raise AssertionError(f"not registered: {self.errors()}")

    def wait(self, limit_s: float) -> int:
        return self.io.wait(limit_s)

    def errors(self) -> str:
        return self.error_path.read_text(errors="replace")

    def error_lines(self) -> list[str]:
        """The lines a user is to read."""
        return [line for line in self.errors().splitlines() if line.startswith("baton: error:")]

    def kill(self) -> None:
        """End of the test: nothing is left."""
        if self.io.poll() is None:
            self.io.kill()
        self.io.wait()


class WorkerLink:
    """A gateway's link to one worker, by hand; `take` waits for a frame of a kind."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[Message] = asyncio.Queue()
        self.closed = asyncio.Event()
        self.link: Link | None = None

    @classmethod
    async def dial(
        cls,
        entry: WorkerEntry,
        incarnation: str = "",
        live: tuple[Attempt, ...] = (),
        session: str = "",
        cell_secret: str = "",
    ) -> "WorkerLink":
        """As the gateway `incarnation` (default: a new one) that still owns `live`."""
        self = cls()
        incarnation = incarnation or f"gateway.{uuid4().hex}"
        hello = Hello(
            "gateway",
            incarnation,
            entry.pool,
            attempts=live,
            to=entry.incarnation,
            session=session,
        )
        self.link = await Link.dial(
            entry.host,
            entry.port,
            hello,
            lambda _, message: self.messages.put_nowait(message),
            lambda _: self.closed.set(),
            cell_secret=cell_secret,
        )
        return self

    def send(self, message: Message) -> None:
        assert self.link is not None
        self.link.send(message)

    async def take(self, kind: type[Found]) -> Found:
        """The next frame of this kind; others before it are dropped."""
        return await self.take_any(kind)

    async def take_any(self, *kinds: type[Found]) -> Found:
        """The next frame of one of these kinds; others before it are dropped."""
        async with asyncio.timeout(20):
            while True:
                message = await self.messages.get()
                if isinstance(message, kinds):
                    return message

    async def take_aside(self, kind: type[Found]) -> Found:
        """The next frame of this kind; those before it stay to be taken, in order."""
        others: list[Message] = []
        async with asyncio.timeout(20):
            while not isinstance(message := await self.messages.get(), kind):
                others.append(message)
        others += [self.messages.get_nowait() for _ in range(self.messages.qsize())]
        for other in others:
            self.messages.put_nowait(other)
        return message

    async def close(self) -> None:
        assert self.link is not None
        await self.link.close()


async def all_entries(registry: RedisWorkerRegistry) -> list[WorkerEntry]:
    return [entry for pool in await registry.pools() for entry in await registry.list(pool)]


def local_prompt(incarnation: str, rid: str, max_tokens: int, length: int = 20) -> Assign:
    """A prompt for a decode worker to compute and answer alone."""
    sampling = Sampling(max_tokens, temperature=0.0, ignore_eos=True)
    work = Work(Attempt(rid, 0), tuple(range(2, 2 + length)), length, bytes(32), sampling)
    return Assign(work, incarnation, "local", "agg")


def prompt_with(incarnation: str, rid: str, token_id: int, *, alone: bool = False) -> Assign:
    """One that goes on for long, and has this token."""
    prompt = local_prompt(incarnation, rid, max_tokens=200)
    token_ids = (*prompt.work.token_ids[:-1], token_id)
    return replace(prompt, work=replace(prompt.work, token_ids=token_ids, alone=alone))


def wait_for(find: Callable[[], Found | None], limit_s: float = 20.0) -> Found:
    """The first result that is not None; AssertionError after `limit_s`."""
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        found = find()
        if found is not None:
            return found
        time.sleep(POLL_S)
    raise AssertionError("it never came")


def maps_of(pid: int) -> str:
    """Names of the files mapped by a process."""
    return Path(f"/proc/{pid}/maps").read_text()


def is_gone(process: psutil.Process) -> bool | None:
    """True once it has ended (a zombie has), else None."""
    gone = not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    return gone or None


def rss_mib(pid: int) -> float:
    return float(psutil.Process(pid).memory_info().rss) / 2**20
