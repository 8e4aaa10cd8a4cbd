"""Lists that are too long to be made at once, as parts of a JSON answer.

They are written a batch at a time: nothing else waits for the whole, and nobody holds it.
"""

import asyncio
import json
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

CHUNK_CHARS = 2**16


class JsonList:
    """Batches of items that make one array."""

    def __init__(self, batches: Iterable[Sequence[Any]]) -> None:
        """Read once."""
        self._batches = batches

    def __iter__(self) -> Iterator[str]:
        """The JSON, in parts."""
        before = "["
        for batch in self._batches:
            if batch:
                yield before + json.dumps(batch, separators=(",", ":"))[1:-1]
                before = ","
        yield "]" if before == "," else "[]"


def split_at_lists(payload: Any) -> tuple[list[str], list[JsonList]]:
    """The JSON around the lists in `payload`, which are one less, in its order. No text of a client
    looks like the mark of one."""
    mark = secrets.token_hex(16)
    lists: list[JsonList] = []

    def put_aside(value: Any) -> str:
        if not isinstance(value, JsonList):
            raise TypeError(f"{type(value).__name__} is no JSON")
        lists.append(value)
        return mark

    text = json.dumps(payload, separators=(",", ":"), default=put_aside)
    return re.split(f'"{mark}"', text) if lists else [text], lists


class ListsResponse(Response):
    """An answer whose lists are made while it is sent, so that its length is known at the end."""

    def __init__(
        self,
        parts: Sequence[str],
        lists: Sequence[JsonList],
        status: int,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(None, status, headers, media_type="application/json")
        self._parts = parts
        self._lists = lists

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [pair for pair in self.raw_headers if pair[0] != b"content-length"]
        start = {"type": "http.response.start", "status": self.status_code, "headers": headers}
        await send(start)
        chunk, size = [], 0
        for text in self._texts():
            chunk.append(text)
            size += len(text)
            if size >= CHUNK_CHARS:
                await self._send("".join(chunk), send)
                chunk, size = [], 0
            await asyncio.sleep(0)
        await self._send("".join(chunk), send, more=False)

    def _texts(self) -> Iterator[str]:
        first, *others = self._parts
        yield first
        for each, after in zip(self._lists, others, strict=True):
            yield from each
            yield after

    async def _send(self, text: str, send: Send, *, more: bool = True) -> None:
        await send({"type": "http.response.body", "body": text.encode(), "more_body": more})
