"""An OpenAI-like server whose times are known."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

FIRST_MS, GAP_MS, STALL_MS = 30.0, 4.0, 50.0


@dataclass
class ScriptedEndpoint:
    """An OpenAI-like server that answers at set times. Runs on a loop in a thread."""

    first_ms: float = FIRST_MS
    gap_ms: float = GAP_MS
    stall_every: int = 0
    """each n-th gap is STALL_MS longer; 0 is none"""
    per_1k_ms: float = 0.0
    """one prompt at a time, this long per 1,000 tokens, before `first_ms`"""
    refuse_every: int = 0
    textless: bool = False
    """tokens have no text, as special ones"""
    hang_up_after: int = 0
    """answers on a connection until it is closed without a word; 0 keeps it"""
    model: str = "scripted"
    token_ids: tuple[int, ...] = ()
    """what /tokenize answers; empty: there is no /tokenize"""
    prompts: list[list[int]] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    models: set[str] = field(default_factory=set)
    """that were asked for"""
    times_s: list[tuple[float, float]] = field(default_factory=list)
    """of each answer, when it was asked for and when its last byte was about to be sent"""
    port: int = 0
    stop: Callable[[], object] = lambda: None
    _engine: asyncio.Lock = field(default_factory=asyncio.Lock)
    _num_asked: int = 0

    async def serve(self, started: threading.Event) -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        self.stop = lambda: loop.call_soon_threadsafe(stop.set)
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        started.set()
        await stop.wait()
        server.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        num_answers = 0
        try:
            while head := await self._read_head(reader):
                size = int(head.get("content-length", 0))
                body = json.loads(await reader.readexactly(size)) if size else {}
                await self._answer(head, body, writer)
                num_answers += 1
                if num_answers == self.hang_up_after:
                    break
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _read_head(self, reader: asyncio.StreamReader) -> dict[str, str]:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        pairs = (line.partition(": ") for line in lines[1:] if line)
        return {"target": lines[0].split()[1], **{name: value for name, _, value in pairs}}

    async def _answer(
        self, head: dict[str, str], body: dict[str, Any], writer: asyncio.StreamWriter
    ) -> None:
        self.keys.add(head.get("authorization", ""))
        if head["target"] == "/v1/models":
            _write(writer, 200, {"data": [{"id": self.model, "max_model_len": 5000}]})
        elif head["target"] == "/tokenize" and self.token_ids:
            _write(writer, 200, {"tokens": self.token_ids})
        elif body.get("model") == "nonesuch":
            _write(writer, 404, {"error": {"message": "no model nonesuch"}})
        elif head["target"] != "/v1/completions":
            _write(writer, 404, {"detail": "Not Found"})
        else:
            self._num_asked += 1
            self.models.add(body["model"])
            self.prompts.append(body["prompt"])
            if self.refuse_every and self._num_asked % self.refuse_every == 0:
                _write(writer, 429, {"error": {"message": "full"}})
            else:
                await self._stream(body, writer)
        await writer.drain()

    async def _stream(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        asked_s = time.monotonic()
        if self.per_1k_ms:
            async with self._engine:
                await asyncio.sleep(len(body["prompt"]) / 1e3 * self.per_1k_ms / 1e3)
        await asyncio.sleep(self.first_ms / 1e3)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for number in range(body["max_tokens"]):
            stalls = self.stall_every and number % self.stall_every == self.stall_every - 1
            gap_ms = self.gap_ms + (STALL_MS if stalls else 0.0) if number else 0.0
            await asyncio.sleep(gap_ms / 1e3)
            if not self.textless:
                _chunk(writer, {"choices": [{"text": "x"}]})
        _chunk(writer, {"choices": [{"text": "", "finish_reason": "length"}]})
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"]}
        _chunk(writer, {"choices": [], "usage": usage})
        # Before the last byte is written: its reader may run before this thread does again.
        self.times_s.append((asked_s, time.monotonic()))
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")


def _write(writer: asyncio.StreamWriter, status: int, value: object) -> None:
    body = json.dumps(value).encode()
    writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body))


def _chunk(writer: asyncio.StreamWriter, value: object) -> None:
    event = b"data: " + json.dumps(value).encode() + b"\n\n"
    writer.write(b"%x\r\n%s\r\n" % (len(event), event))


@contextmanager
def scripted(**fields: Any) -> Iterator[ScriptedEndpoint]:
    endpoint, started = ScriptedEndpoint(**fields), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(endpoint.serve(started)))
    thread.start()
    assert started.wait(10.0)
    try:
        yield endpoint
    finally:
        endpoint.stop()
        thread.join()
