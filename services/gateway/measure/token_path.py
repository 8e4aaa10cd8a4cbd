"""CPU per token without sockets: the gateway's own code for a token, in one process, nothing else.

`python -m services.gateway.measure.token_path MODEL NUM_STREAMS NUM_STEPS [PROFILE_FILE]` builds
the gateway's application on memory stores, speaks HTTP to its protocol through a transport that
throws bytes away, and feeds it the frames of a decode worker. What is left out against a real
gateway is the kernel: reading frames and writing chunks. It prints CPU per token.
"""

import asyncio
import cProfile
import json
import pstats
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from services.gateway.answer.submit_order import PromptSharing
from services.gateway.http.open_connections import OpenConnections
from services.gateway.http.protocol import GatewayProtocol
from services.gateway.http.server import http_limits, http_server
from services.gateway.owner.core import GatewayCore, GatewayStores
from services.gateway.owner.identity import GatewayIdentity
from services.gateway.owner.links.served_pool import ServedPool
from services.gateway.owner.links.worker_links import WorkerLinks
from services.gateway.owner.records.metrics_observer import MetricsObserver
from services.gateway.prompt.served_model import served_model
from services.gateway.prompt.text_work.text_pool import TextPool
from services.gateway.routes.app import create_app
from services.gateway.routes.served import Served, ServedModels
from services.gateway.routes.status import StatusRoutes
from shared.clock import SystemClock
from shared.event_loop import run_main
from shared.link.mock_worker import MockWorker
from shared.model.checkpoint import load_checkpoint
from shared.protocol import CODEC, SPOKEN, Hello, Message
from shared.queue.memory_backlog import MemoryBacklog
from shared.settings.groups import Settings
from shared.settings.load import load_settings
from shared.state.memory_records import MemoryGatewayLiveness, MemoryRequestRecords
from shared.state.memory_registry import MemoryWorkerRegistry
from shared.state.prefix_index import PrefixIndex
from shared.state.registry import WorkerEntry
from shared.telemetry.metrics import GatewayMetrics
from shared.telemetry.tracing import NoSpans

POOL = "pool@0:fp"
PROMPT = list(range(300, 400))
TOKEN_ID = 400
TURNS = 50
LIMIT_S = 60.0


class NullTransport(asyncio.Transport):
    """Takes everything and keeps nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.num_writes = 0

    def write(self, piece: Any) -> None:
        self.num_writes += 1

    def is_closing(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name in ("peername", "sockname") else default


class WorkerEnd:
    """A link to a mock worker without a connection."""

    def __init__(self, worker: MockWorker, on_message: Callable[[Any, Message], None]) -> None:
        self.worker = worker
        self.peer = worker.hello()
        self.version = SPOKEN.newest
        self.closed = False
        self._on_message = on_message

    def send(self, message: Message) -> None:
        self.worker.receive(message, self._answer)

    async def close(self) -> None:
        self.closed = True

    def say(self, message: Message) -> None:
        self._on_message(self, message)

    def _answer(self, message: Message) -> None:
        asyncio.get_running_loop().call_soon(self.say, message)


class MemoryGateway:
    """A gateway without processes, sockets or Redis."""

    def __init__(self, settings: Settings) -> None:
        checkpoint = load_checkpoint(settings.model.name)
        clock = SystemClock()
        model = served_model(
            checkpoint,
            settings.model,
            settings.compute.max_model_len,
            settings.limits.unknown_fields,
        )
        liveness = MemoryGatewayLiveness()
        records = MemoryRequestRecords(liveness, clock)
        registry = MemoryWorkerRegistry(clock, ttl_s=1e9)
        g_inc = f"gateway.{2:032x}"
        self.ends: dict[str, WorkerEnd] = {}
        self.registry = registry
        self.model = model
        served = ServedPool("pool", POOL, 16)
        links = WorkerLinks(registry, served, g_inc, clock, self._dial)
        metrics = GatewayMetrics(links.samples)
        hashing = settings.kv.hashing("")
        identity = GatewayIdentity(
            g_inc, served, "1", "http://x", model.name, model.max_model_len, hashing
        )
        stores = GatewayStores(records, MemoryBacklog(64, (g_inc,)), PrefixIndex())
        observation = MetricsObserver(metrics, NoSpans(), model.name)
        self.core = GatewayCore(settings.limits, identity, stores, links, clock, observation)
        self.text = TextPool(checkpoint.path, model, hashing)
        limits = settings.limits
        models = ServedModels([Served(model, self.core.door, self.text)])
        app = create_app(
            limits,
            settings.network,
            PromptSharing.of(settings.engine, settings.kv.block_size, "cpu"),
            models,
            StatusRoutes(models, metrics.text, "1"),
        )
        self._limits = http_limits(limits)
        self._server = http_server(app, limits.drain_s, self._limits)
        self._server.config.load()

    async def start(self) -> None:
        for role in ("prefill", "decode"):
            inc = f"{role}.{1:032x}"
            await self.registry.register(
                WorkerEntry(role, inc, role, "x", 1, POOL, 0, "1", self.model.name, 4096, 16)
            )
        self.core.start()
        await until(self.core.door.ready)

    def open(self, num_tokens: int) -> NullTransport:
        """One streamed completion."""
        server = self._server
        connections = OpenConnections(self._limits)
        protocol = GatewayProtocol(connections, server.config, server.server_state, {})
        transport = NullTransport()
        protocol.connection_made(transport)
        fields = {"max_tokens": num_tokens, "stream": True, "ignore_eos": True, "temperature": 0}
        body = json.dumps({"model": self.model.name, "prompt": PROMPT, **fields}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        protocol.data_received(b"%scontent-length: %d\r\n\r\n%s" % (head, len(body), body))
        return transport

    def step(self) -> bytes:
        """The decode worker's next frame, with everybody's token."""
        ((_, tokens),) = self.ends["decode"].worker.step()
        return CODEC.encode(tokens)

    async def close(self) -> None:
        await self.core.close()
        await self.text.close()

    async def _dial(
        self, host: str, port: int, hello: Hello, on_message: Any, on_closed: Any
    ) -> WorkerEnd:
        role: Literal["prefill", "decode"] = "decode" if "prefill" in self.ends else "prefill"
        worker = MockWorker(role, f"{role}.{1:032x}", POOL)
        worker.token_id = TOKEN_ID
        end = self.ends[role] = WorkerEnd(worker, on_message)
        return end


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110 -- nothing here has an event for it
            await asyncio.sleep(0.001)


async def measure(model: str, num_streams: int, num_steps: int, profile: str | None) -> int:
    gateway = MemoryGateway(
        load_settings({"model": model, "device": "cpu", "max_live_requests": 4096}, {})
    )
    await gateway.start()
    transports = [gateway.open(num_steps + 2) for _ in range(num_streams)]
    decode = gateway.ends["decode"]
    await until(lambda: decode.worker.num_decoding == num_streams)
    decode.say(CODEC.decode(gateway.step()))  # token 1 once more, which prefill has sent
    await until(lambda: all(transport.num_writes >= 2 for transport in transports))
    frames = [gateway.step() for _ in range(num_steps)]
    before = _num_writes(transports)
    profiler = cProfile.Profile() if profile else None
    if profiler is not None:
        profiler.enable()
    start_s = time.process_time()
    for number, frame in enumerate(frames, start=1):
        decode.say(CODEC.decode(frame))
        wanted = before + number * num_streams
        for _ in range(TURNS):
            await asyncio.sleep(0)
            if _num_writes(transports) >= wanted:
                break
    used_s = time.process_time() - start_s
    if profiler is not None and profile is not None:
        profiler.disable()
        _write_profile(profiler, Path(profile))
    num_writes = _num_writes(transports) - before
    decode.say(CODEC.decode(gateway.step()))
    await until(lambda: not gateway.core.door.status()["requests"]["live"])
    await gateway.close()
    num_tokens = num_streams * num_steps
    answer = {
        "us_per_token": used_s * 1e6 / num_tokens,
        "writes_per_token": num_writes / num_tokens,
    }
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


def _num_writes(transports: list[NullTransport]) -> int:
    return sum(transport.num_writes for transport in transports)


def _write_profile(profiler: cProfile.Profile, path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        pstats.Stats(profiler, stream=file).sort_stats("tottime").print_stats(40)


def main(arguments: list[str]) -> int:
    model, num_streams, num_steps, *rest = arguments
    return run_main(measure(model, int(num_streams), int(num_steps), rest[0] if rest else None))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
