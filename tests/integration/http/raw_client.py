"""Bytes on a real socket, where a client library would not send what a test needs."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from tests.support.fakes.served_app import ServedApp

LIMIT_S = 10.0
JSON_HEADER = "content-type: application/json"


@dataclass(frozen=True)
class RawAnswer:
    """One HTTP answer as it came."""

    status: int
    headers: dict[str, str]
    """names in lower case"""
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = json.loads(self.body)["error"]
        return error


def head_bytes(method: str, path: str, *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: x", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1")


def request_bytes(path: str, body: dict[str, Any], *headers: str) -> bytes:
    """A complete POST."""
    content = json.dumps(body).encode()
    length = f"content-length: {len(content)}"
    return head_bytes("POST", path, JSON_HEADER, length, *headers) + content


@contextlib.asynccontextmanager
async def connection(
    app: ServedApp,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(*app.address)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def read_answer(reader: asyncio.StreamReader, *, has_body: bool = True) -> RawAnswer:
    """The next answer that states its length."""
    async with asyncio.timeout(LIMIT_S):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        status_line, *lines = head.strip().split("\r\n")
        pairs = (line.partition(":") for line in lines)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        body = await reader.readexactly(int(headers["content-length"])) if has_body else b""
    return RawAnswer(int(status_line.split(" ")[1]), headers, body)


async def exchange(app: ServedApp, sent: bytes) -> RawAnswer:
    """Send bytes on a connection of their own; the answer, after which it must be closed if it
    says so."""
    async with connection(app) as (reader, writer):
        writer.write(sent)
        answer = await read_answer(reader)
        if answer.headers.get("connection") == "close":
            async with asyncio.timeout(LIMIT_S):
                assert await reader.read() == b""
    return answer
