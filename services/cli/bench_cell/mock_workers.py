"""Workers without an engine, all in one process: real links, real registration, empty answers.

`python -m services.cli.bench_cell.mock_workers` reads its setup and then commands as JSON lines
from its input and says `ok` after each; the end of the input ends it. ASSIGN is answered with
START and token 1 at once, RECEIVE with one token a step, all of a worker's step in one frame. A
frame's time is taken when it is encoded, right before it is written, and kept per token.
"""

import asyncio
import gc
import json
import sys
import threading
import typing
from array import array
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic_ns
from typing import Any, Literal

from shared.challenge import Challenge
from shared.checkpoint import kv_layout, load_checkpoint
from shared.codec import Codec
from shared.event_loop import run_main
from shared.kv_layout import pool_name
from shared.link.connection import Connection
from shared.process import die_with_parent, new_incarnation, worker_id_of
from shared.protocol import (
    VERSION,
    Assign,
    Cancel,
    FinishReason,
    Hello,
    Load,
    Message,
    Ping,
    Pong,
    Receive,
    Start,
    TokenRun,
    Tokens,
)
from shared.release import release
from shared.state.keys import Keys
from shared.state.redis_client import RedisClient
from shared.state.redis_registry import RedisWorkerRegistry
from shared.state.registry import REFRESH_INTERVAL_S, WorkerEntry

BLOCK_SIZE = 16
MUCH = 10**6


@dataclass(frozen=True)
class MockSetup:
    """What the process needs to know."""

    redis_url: str
    model: str
    num_decode: int
    parent_pid: int

    def line(self) -> str:
        return json.dumps(asdict(self)) + "\n"


class StampedCodec(Codec):
    """Remembers when it encoded last."""

    encoded_ns = 0

    def encode(self, message: Any) -> bytes:
        body = super().encode(message)
        self.encoded_ns = monotonic_ns()
        return body


@dataclass
class _Decoding:
    connection: Connection
    message: Receive
    next_index: int = 0


class MockWorker:
    """One worker; `step` gives everybody on it a token."""

    def __init__(
        self, role: Literal["prefill", "decode"], name: str, pool: str, sent: "SentTimes"
    ) -> None:
        self.role: Literal["prefill", "decode"] = role
        self.inc = new_incarnation(name)
        self.token_id = 0
        self._pool = pool
        self._sent = sent
        self._decoding: dict[str, _Decoding] = {}
        self._codec = StampedCodec(typing.get_args(Message))

    async def listen(self) -> int:
        """Returns the port."""
        server = await asyncio.get_running_loop().create_server(self._connection, "127.0.0.1", 0)
        port: int = server.sockets[0].getsockname()[1]
        return port

    def step(self) -> None:
        runs: dict[Connection, list[TokenRun]] = defaultdict(list)
        for rid, decoding in list(self._decoding.items()):
            last = decoding.next_index + 1 == decoding.message.sampling.max_tokens
            run = self._run(rid, decoding.message.epoch, decoding.next_index, last=last)
            runs[decoding.connection].append(run)
            decoding.next_index += 1
            if last:
                del self._decoding[rid]
        for connection, of_one in runs.items():
            connection.send(Tokens(self.inc, tuple(of_one), self._load()))
            for run in of_one:
                self._sent.note(run.rid, run.index, self._codec.encoded_ns)

    def _connection(self) -> Connection:
        challenge = Challenge("", "link", VERSION, dials=False)
        return Connection(self._receive, lambda *_: None, self._greet, self._codec, challenge)

    def _greet(self, connection: Connection) -> None:
        address = "127.0.0.1:1" if self.role == "prefill" else ""
        connection.send(
            Hello(VERSION, self.role, self.inc, self._pool, (), self._load(), address, 0, "mock")
        )

    def _receive(self, connection: Connection, message: Message) -> None:
        match message:
            case Ping(seq):
                connection.send(Pong(seq, self._load()))
            case Assign(rid, epoch):
                connection.send(Start(rid, epoch, self.inc, 0, self._load()))
                run = self._run(rid, epoch, 0, last=message.sampling.max_tokens == 1)
                connection.send(Tokens(self.inc, (run,), self._load()))
            case Receive():
                self._decoding[message.rid] = _Decoding(connection, message)
            case Cancel(rid):
                self._decoding.pop(rid, None)

    def _run(self, rid: str, epoch: int, index: int, *, last: bool) -> TokenRun:
        reason: FinishReason | None = "length" if last else None
        return TokenRun(rid, epoch, index, (self.token_id,), (), reason)

    def _load(self) -> Load:
        return Load(MUCH, 0, len(self._decoding), 0, MUCH, MUCH, 0, 0)


class SentTimes:
    """When each token of a decode worker was sent, by request."""

    def __init__(self) -> None:
        self._by_rid: dict[str, array[int]] = defaultdict(lambda: array("q"))

    def note(self, rid: str, index: int, now_ns: int) -> None:
        times = self._by_rid[rid]
        assert len(times) == index
        times.append(now_ns)

    def dump(self, path: Path) -> None:
        """Writes and forgets them."""
        path.write_text(json.dumps({rid: list(times) for rid, times in self._by_rid.items()}))
        self._by_rid.clear()


class MockPool:
    """All workers of the process."""

    def __init__(self, setup: MockSetup) -> None:
        self._checkpoint = load_checkpoint(setup.model)
        self._pool = pool_name(
            self._checkpoint.name, kv_layout(self._checkpoint, "float32", BLOCK_SIZE)
        )
        self._redis_url = setup.redis_url
        self._sent = SentTimes()
        self._step_s = 0.02
        self._workers = [MockWorker("prefill", "mock-prefill", self._pool, self._sent)]
        self._workers += [
            MockWorker("decode", f"mock-decode-{number:03}", self._pool, self._sent)
            for number in range(setup.num_decode)
        ]

    async def serve(self, commands: "asyncio.Queue[str]") -> int:
        entries = [self._entry(worker, await worker.listen()) for worker in self._workers]
        async with RedisClient(self._redis_url) as redis:
            tasks = [asyncio.create_task(self._register(redis, entries))]
            decode = self._workers[1:]
            for number, worker in enumerate(decode):
                tasks.append(asyncio.create_task(self._steps(worker, number / len(decode))))
            while command := await commands.get():
                self._obey(json.loads(command))
                sys.stdout.write("ok\n")
                sys.stdout.flush()
            for task in tasks:
                task.cancel()
        return 0

    def _obey(self, command: dict[str, Any]) -> None:
        if "step_ms" in command:
            self._step_s = command["step_ms"] / 1000
        if "token_id" in command:
            for worker in self._workers:
                worker.token_id = command["token_id"]
        if "dump" in command:
            self._sent.dump(Path(command["dump"]))

    async def _register(self, redis: RedisClient, entries: list[WorkerEntry]) -> None:
        registry = RedisWorkerRegistry(redis, Keys())
        while True:
            for entry in entries:
                await registry.register(entry)
            await asyncio.sleep(REFRESH_INTERVAL_S)

    async def _steps(self, worker: MockWorker, phase: float) -> None:
        """A step every `step_s`; the workers' steps are spread evenly over that time."""
        loop = asyncio.get_running_loop()
        while True:
            step_s = self._step_s
            number = round(loop.time() / step_s - phase) + 1  # a timer may fire a little early
            await asyncio.sleep((number + phase) * step_s - loop.time())
            worker.step()

    def _entry(self, worker: MockWorker, port: int) -> WorkerEntry:
        return WorkerEntry(
            worker_id=worker_id_of(worker.inc),
            inc=worker.inc,
            role=worker.role,
            host="127.0.0.1",
            port=port,
            pool=self._pool,
            pid=0,
            version=release(),
            model=self._checkpoint.name,
            max_model_len=self._checkpoint.config.max_position_embeddings,
            block_size=BLOCK_SIZE,
        )


async def _serve(setup: MockSetup) -> int:
    commands: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(commands.put_nowait, line)
        loop.call_soon_threadsafe(commands.put_nowait, "")

    threading.Thread(target=read, daemon=True).start()
    return await MockPool(setup).serve(commands)


def main() -> int:
    setup = MockSetup(**json.loads(sys.stdin.readline()))
    die_with_parent(setup.parent_pid)
    gc.disable()  # a pause here would look like one of the gateway's
    return run_main(_serve(setup))


if __name__ == "__main__":
    sys.exit(main())
