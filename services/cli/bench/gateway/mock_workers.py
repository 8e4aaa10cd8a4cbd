"""Workers without an engine, all in one process: real links, real registration, empty answers.

`python -m services.cli.bench.gateway.mock_workers` reads its setup and then commands as JSON lines
from its input and says `ok` after each; the end of the input ends it. A frame's time is taken when
it is encoded, right before it is written, and kept per token.
"""

import asyncio
import contextlib
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
from shared.codec import Codec
from shared.errors import StateUnavailableError
from shared.event_loop import run_main
from shared.kv.layout import pool_name
from shared.link.connection import Connection
from shared.link.mock_worker import MockWorker
from shared.model.checkpoint import kv_layout, load_checkpoint
from shared.process import die_with_parent, new_incarnation, worker_id_of
from shared.protocol import SPOKEN, Message
from shared.release import release
from shared.state.keys import Keys
from shared.state.redis_client import RedisClient
from shared.state.redis_registry import RedisWorkerRegistry
from shared.state.registry import REFRESH_INTERVAL_S, WorkerEntry

BLOCK_SIZE = 16


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


class ListeningWorker(MockWorker):
    """A mock worker with a port of its own."""

    def __init__(
        self, role: Literal["prefill", "decode"], name: str, pool: str, sent: "SentTimes"
    ) -> None:
        super().__init__(role, new_incarnation(name), pool)
        self._sent = sent
        self._codec = StampedCodec(typing.get_args(Message))

    async def listen(self) -> int:
        """Returns the port."""
        server = await asyncio.get_running_loop().create_server(self._connection, "127.0.0.1", 0)
        port: int = server.sockets[0].getsockname()[1]
        return port

    def send_step(self) -> None:
        for send, tokens in self.step():
            send(tokens)
            for run in tokens.runs:
                self._sent.note(run.rid, run.index, self._codec.encoded_ns)

    def _connection(self) -> Connection:
        challenge = Challenge("", "link", SPOKEN, dials=False)
        return Connection(self._answer, lambda *_: None, self._greet, self._codec, challenge)

    def _greet(self, connection: Connection) -> None:
        connection.send(self.hello())

    def _answer(self, connection: Connection, message: Message) -> None:
        self.receive(message, connection.send)


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
        self._workers = [ListeningWorker("prefill", "mock-prefill", self._pool, self._sent)]
        self._workers += [
            ListeningWorker("decode", f"mock-decode-{number:03}", self._pool, self._sent)
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
            with contextlib.suppress(StateUnavailableError):
                for entry in entries:
                    await registry.register(entry)
            await asyncio.sleep(REFRESH_INTERVAL_S)

    async def _steps(self, worker: ListeningWorker, phase: float) -> None:
        """A step every `step_s`; the workers' steps are spread evenly over that time."""
        loop = asyncio.get_running_loop()
        while True:
            step_s = self._step_s
            number = round(loop.time() / step_s - phase) + 1  # a timer may fire a little early
            await asyncio.sleep((number + phase) * step_s - loop.time())
            worker.send_step()

    def _entry(self, worker: ListeningWorker, port: int) -> WorkerEntry:
        return WorkerEntry(
            worker_id=worker_id_of(worker.incarnation),
            incarnation=worker.incarnation,
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
