"""A worker process without an engine: a real link server, registered in a real Redis.

`python -m tests.mock_worker ROLE REDIS_URL MODEL STEP_MS`. It answers ASSIGN with START and
token 1 at once, and RECEIVE with one token a step, all of a step in one frame.
"""

import asyncio
import contextlib
import os
import sys
from dataclasses import dataclass
from typing import Literal
from zlib import crc32

from shared.checkpoint import kv_layout, load_checkpoint
from shared.errors import StateUnavailableError
from shared.event_loop import run_main
from shared.kv_layout import pool_name
from shared.link.server import LinkServer, Peer
from shared.process import die_with_parent, new_incarnation
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
FIRST_TOKEN_ID = 300
NUM_TOKEN_IDS = 700
IDLE = Load(10**6, 0, 0, 0, 10**5, 10**5, 0, 0)


def token_id(rid: str, index: int) -> int:
    """The model: whoever computes it gets the same token."""
    return FIRST_TOKEN_ID + (crc32(rid.encode()) + index) % NUM_TOKEN_IDS


@dataclass
class _Decoding:
    peer: Peer
    message: Receive
    next_index: int = 0


class MockWorker:
    """Everything one mock worker holds."""

    def __init__(self, role: Literal["prefill", "decode"], model: str, step_s: float) -> None:
        self._role = role
        self._step_s = step_s
        self._inc = new_incarnation(f"mock-{role}-{os.getpid()}")
        checkpoint = load_checkpoint(model)
        self._model = checkpoint.name
        self._max_model_len = checkpoint.config.max_position_embeddings
        self._pool = pool_name(self._model, kv_layout(checkpoint, "float32", BLOCK_SIZE))
        self._decoding: dict[str, _Decoding] = {}
        self._server = LinkServer(self._hello, self._receive, lambda _: None)

    async def serve(self, redis_url: str) -> int:
        """For ever; the parent's end is this process's."""
        port = await self._server.start("127.0.0.1", 0)
        entry = WorkerEntry(
            self._inc.rpartition(".")[0],
            self._inc,
            self._role,
            "127.0.0.1",
            port,
            self._pool,
            os.getpid(),
            release(),
            self._model,
            self._max_model_len,
            BLOCK_SIZE,
        )
        async with RedisClient(redis_url) as redis, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._step_forever())
            registry = RedisWorkerRegistry(redis, Keys())
            while True:
                with contextlib.suppress(StateUnavailableError):
                    await registry.register(entry)
                await asyncio.sleep(REFRESH_INTERVAL_S)

    def _hello(self) -> Hello:
        address = "127.0.0.1:1" if self._role == "prefill" else ""
        return Hello(
            VERSION, self._role, self._inc, self._pool, load=IDLE, transfer_address=address
        )

    def _receive(self, peer: Peer, message: Message) -> None:
        match message:
            case Ping(seq):
                peer.send(Pong(seq, IDLE))
            case Assign(rid, epoch):
                peer.send(Start(rid, epoch, self._inc, 0, IDLE))
                ends = message.sampling.max_tokens == 1
                peer.send(Tokens(self._inc, (_run(rid, epoch, 0, last=ends),), IDLE))
            case Receive():
                self._decoding[message.rid] = _Decoding(peer, message)
            case Cancel(rid):
                self._decoding.pop(rid, None)
            case _:
                raise AssertionError(f"a mock takes no {type(message).__name__}")

    async def _step_forever(self) -> None:
        loop = asyncio.get_running_loop()
        next_s = loop.time()
        while True:
            next_s = max(next_s + self._step_s, loop.time())
            await asyncio.sleep(next_s - loop.time())
            self._step()

    def _step(self) -> None:
        """One token for everybody."""
        runs: dict[Peer, list[TokenRun]] = {}
        for decoding in list(self._decoding.values()):
            message, index = decoding.message, decoding.next_index
            last = index + 1 == message.sampling.max_tokens
            run = _run(message.rid, message.epoch, index, last=last)
            runs.setdefault(decoding.peer, []).append(run)
            decoding.next_index += 1
            if last:
                del self._decoding[message.rid]
        for peer, of_peer in runs.items():
            peer.send(Tokens(self._inc, tuple(of_peer), IDLE))


def _run(rid: str, epoch: int, index: int, *, last: bool) -> TokenRun:
    reason: FinishReason | None = "length" if last else None
    return TokenRun(rid, epoch, index, (token_id(rid, index),), (), reason)


def main(arguments: list[str]) -> int:
    role, redis_url, model, step_ms, parent_pid = arguments
    die_with_parent(int(parent_pid))
    assert role in ("prefill", "decode")
    worker = MockWorker("prefill" if role == "prefill" else "decode", model, float(step_ms) / 1000)
    return run_main(worker.serve(redis_url))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
