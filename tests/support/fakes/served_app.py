"""The gateway's app behind a real uvicorn server, over a door that plays scripts."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from tokenizers import Tokenizer

from services.gateway.answer.submit_order import PromptSharing
from services.gateway.http.limits import HttpLimits
from services.gateway.http.server import HttpServer, http_limits, http_server
from services.gateway.owner.generation import Delta, GenerateRequest, Generation
from services.gateway.owner.records.row import Row, RowFilter
from services.gateway.prompt.served_model import ServedModel
from services.gateway.prompt.text_work.text_pool import TextPool
from services.gateway.routes.app import create_app
from services.gateway.routes.served import Served, ServedModels
from services.gateway.routes.status import StatusRoutes
from shared.errors import BatonError
from shared.kv.block_hash import BlockHashing
from shared.protocol import FinishReason, TokenLogprobs
from shared.settings.groups import Settings
from shared.telemetry.metrics import GatewayFacts, GatewayMetrics
from tests.support.models.text_models import END, served_text_model
from tests.support.settings import settings_with

Step = Delta | BatonError | asyncio.Event | None
"""yield tokens, fail, wait for the event, or let the loop turn once"""
Script = Callable[[GenerateRequest], Sequence[Step]]


def _always(_: GenerateRequest) -> bool:
    return True


@dataclass
class ScriptedDoor:
    """Answers every request by the script of the moment and remembers what was asked."""

    script: Script
    is_ready: bool = True
    is_served: bool = True
    """as far as it is ready"""
    is_served_elsewhere: bool = False
    num_unready: int = 0
    """times that it is not ready yet"""
    failing: str = ""
    """which background loop fails"""
    store: str = "ok"
    unlinked: str = ""
    """which registered workers are of no use"""
    refusal: BatonError | None = None
    accepts: Callable[[GenerateRequest], bool] = _always
    """whether it is recorded and placed at once; a token accepts it anyway"""
    cached_tokens: int = 0
    requests: list[GenerateRequest] = field(default_factory=list)
    generations: list[Generation] = field(default_factory=list)
    finished: list[tuple[str, FinishReason, int]] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    shown: dict[str, Any] = field(default_factory=dict)
    """more of its status"""
    closed: list[str] = field(default_factory=list)
    """HTTP requests of which no other choice comes"""
    was_cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    receipts: dict[str, dict[str, Any]] = field(default_factory=dict)
    draining: bool = False
    live_body: dict[str, Any] = field(default_factory=lambda: {"workers": []})
    """what it knows of itself"""
    num_live_bodies: int = 0
    """made so far"""
    rows: list[Row] = field(default_factory=list)
    """the last requests"""
    _playing: set[asyncio.Task[None]] = field(default_factory=set)

    def submit(self, request: GenerateRequest) -> Generation:
        if self.refusal is not None:
            raise self.refusal
        self.requests.append(request)
        generation = Generation(request.rid, self)
        generation.cached_tokens = self.cached_tokens
        if self.accepts(request):
            generation.accept()
        self.generations.append(generation)
        task = asyncio.ensure_future(self._play(generation, self.script(request)))
        self._playing.add(task)
        task.add_done_callback(self._playing.discard)
        return generation

    def other_pools(self) -> tuple[str, ...]:
        return ()

    def serves(self) -> bool:
        return self.is_served and self.ready()

    def may_serve_elsewhere(self) -> bool:
        return self.is_served_elsewhere

    def ready(self) -> bool:
        if self.num_unready:
            self.num_unready -= 1
            return False
        return self.is_ready

    def trouble(self) -> str:
        return self.unlinked if self.is_ready else "no decode worker is linked"

    def store_state(self) -> str:
        return self.store

    def status(self) -> dict[str, Any]:
        return {"requests": {"live": len(self._playing)}, "workers": [], **self.shown}

    def receipt(self, rid: str) -> dict[str, Any] | None:
        return self.receipts.get(rid)

    def live(self) -> dict[str, Any]:
        self.num_live_bodies += 1
        return {**self.live_body, "body": self.num_live_bodies}

    def last_requests(self, wanted: RowFilter) -> list[Row]:
        return wanted.choose(self.rows)

    async def final_receipt(self, rid: str) -> dict[str, Any] | None:
        return self.receipts.get(rid)

    async def finish(self, rid: str, reason: FinishReason, num_tokens: int) -> None:
        self.finished.append((rid, reason, num_tokens))

    def cancel(self, rid: str, num_tokens: int) -> None:
        if rid not in self.cancelled:  # the second time is no news, as with the real door
            self.cancelled.append(rid)
        self.was_cancelled.set()

    async def close_record(self, rid: str) -> None:
        self.closed.append(rid)

    async def reset(self) -> None:
        """End what still plays and forget everything."""
        for task in self._playing:
            task.cancel()
        await asyncio.gather(*self._playing, return_exceptions=True)
        self.failing = self.unlinked = ""
        self.is_ready, self.refusal, self.cached_tokens = True, None, 0
        self.accepts = _always
        for seen in (self.requests, self.generations, self.finished, self.cancelled, self.closed):
            seen.clear()
        self.receipts.clear()
        self.rows.clear()
        self.draining = False
        self.shown.clear()
        self.was_cancelled.clear()

    async def _play(self, generation: Generation, steps: Sequence[Step]) -> None:
        for step in steps:
            if isinstance(step, asyncio.Event):
                await step.wait()
            elif isinstance(step, Delta):
                generation.put(step)
            elif isinstance(step, BatonError):
                generation.fail(step)
                return
            await asyncio.sleep(0)
        generation.end()


@dataclass
class ServedApp:
    """One running gateway and what a test needs of it."""

    url: str
    address: tuple[str, int]
    door: ScriptedDoor
    tokenizer: Tokenizer
    settings: Settings
    server: HttpServer

    def answer(self, text: str) -> None:
        """From now on every request is answered with this text and then EOS."""
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        self.door.script = script_of(ids, self.tokenizer.token_to_id(END))


def script_of(ids: Sequence[int], eos: int | None) -> Script:
    """One delta per token, then EOS; or "length" where max_tokens ends it first."""

    def script(request: GenerateRequest) -> Sequence[Step]:
        sampling = request.sampling
        tokens = [*ids, eos] if eos is not None else list(ids)
        cut = tokens[: sampling.max_tokens]
        reason: FinishReason = "stop" if eos is not None and len(cut) == len(tokens) else "length"
        steps: list[Step] = []
        for index, token in enumerate(cut):
            last = index == len(cut) - 1
            steps.append(delta((token,), reason if last else None, sampling.logprobs))
        return steps

    return script


def delta(
    ids: tuple[int, ...], reason: FinishReason | None = None, num_logprobs: int = -1
) -> Delta:
    """Tokens with made-up log-probabilities, if any are asked for."""
    entries: tuple[TokenLogprobs, ...] = ()
    if num_logprobs >= 0:
        top = tuple(range(10, 10 + num_logprobs))
        values = tuple(-1.0 - index for index in range(num_logprobs))
        entries = tuple(TokenLogprobs(-0.5, top, values) for _ in ids)
    return Delta(ids, entries, reason)


def models_of(door: ScriptedDoor) -> ServedModels:
    """One that nobody asks for text."""
    return ServedModels([Served(ServedModel("demo", 64, 64, ()), door, cast(TextPool, None))])


@contextlib.asynccontextmanager
async def serve_app(
    directory: Path,
    tokenizer: Tokenizer,
    settings: Settings | None = None,
    limits: HttpLimits | None = None,
) -> AsyncIterator[ServedApp]:
    """A gateway on a free port of the loopback interface."""
    settings = settings or settings_with()
    model = replace(
        served_text_model(tokenizer),
        thinking=settings.model.thinking,
        unknown_fields=settings.limits.unknown_fields,
    )
    door = ScriptedDoor(script_of((), None))
    pool = TextPool(directory, model, BlockHashing(b"", 16))
    facts = GatewayFacts(ignored_fields=pool.ignored_fields.counts)
    metrics = GatewayMetrics(lambda: (), lambda: facts)
    models = ServedModels([Served(model, door, pool)])
    status = StatusRoutes(models, metrics.text, "1.2.3", lambda: door.failing)
    sharing = PromptSharing.of(settings.engine, settings.kv.block_size, "cpu")
    app = create_app(settings.limits, settings.network, sharing, models, status)
    limits = limits or http_limits(settings.limits)
    server = http_server(app, settings.limits.drain_s, limits)
    sock = socket.create_server(("127.0.0.1", 0))
    serving = asyncio.ensure_future(server.serve(sockets=[sock]))
    address = sock.getsockname()
    try:
        while not server.started and not serving.done():  # noqa: ASYNC110  (no event to await)
            await asyncio.sleep(0.005)
        url = f"http://127.0.0.1:{address[1]}"
        yield ServedApp(url, address, door, tokenizer, settings, server)
    finally:
        await door.reset()
        server.should_exit = True
        server.force_exit = True
        await serving
        await pool.close()
        sock.close()
