"""One HTTP request of the load, from the first byte sent to the last one read."""

import asyncio
import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from services.cli.bench.serve.client.http_stream import BrokenAnswerError, HttpConnection
from services.cli.event_reader import DONE, EventReader

OK = 200
CONFLICT = 409
REFUSED = (CONFLICT, 429, 503)
"""not accepted: 409 as long as the gateway that has the key may still answer"""
NOT_KEPT = "answers are not kept"
"""says a gateway of a key whose request has ended"""
CONNECT_S = 5.0


@dataclass
class Attempt:
    """What the client saw. At most one of `whole`, `error` and `broken` at its end."""

    gateway: int
    sent_s: float
    """on the monotonic clock, as all times here"""
    status: int = 0
    rid: str = ""
    text: str = ""
    num_tokens: int = 0
    """by the last usage that came"""
    times_s: list[float] = field(default_factory=list)
    """when events with output came"""
    margin: float = math.inf
    """least difference in log-probability between the two likeliest tokens of a step, if it was
    asked for"""
    finish_reason: str | None = None
    error: str = ""
    """the code and message of an error, as a body or as an event"""
    broken: str = ""
    """how the connection ended, if not with the answer's end"""
    hangs: bool = False
    """it was given up after a long time"""
    connected: bool = False
    """the request may have been received"""
    left: bool = False
    """the client hung up"""
    retry_after_s: float = 0.0
    done: bool = False
    """[DONE] came"""
    end_s: float = 0.0

    @property
    def whole(self) -> bool:
        told = self.done and self.finish_reason is not None
        return self.status == OK and told and not (self.error or self.broken)

    @property
    def failed(self) -> bool:
        """It was answered, and not well: with an error, or an end that is none."""
        if self.broken or self.left or self.whole:
            return False
        return self.status not in (0, *REFUSED)

    @property
    def ended_before(self) -> bool:
        """The request that has its key is over, and nobody gets its answer any more."""
        return self.status == CONFLICT and NOT_KEPT in self.error


class Connection:
    """An attempt under way, which the client may leave."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self._http: HttpConnection | None = None
        self._events = EventReader()
        self._refusal = b""

    async def exchange(self, url: str, body: bytes, key: str, limit_s: float) -> None:
        """Fills in the attempt; never raises for what the server does."""
        attempt = self.attempt
        try:
            async with asyncio.timeout(limit_s):
                await self._exchange(url, body, key)
        except TimeoutError:
            attempt.hangs = True
            attempt.broken = f"no end within {limit_s:g} s"
        except (OSError, BrokenAnswerError) as error:
            attempt.broken = attempt.broken or str(error) or type(error).__name__
        finally:
            attempt.end_s = time.monotonic()
            if self._http is not None:
                self._http.close()

    @property
    def is_open(self) -> bool:
        return self._http is not None and self._http.reusable

    def leave(self) -> None:
        self.attempt.left = True
        if self._http is not None:
            self._http.close()

    def on_head(self, status: int, headers: dict[bytes, bytes]) -> None:
        self.attempt.status = status
        self.attempt.rid = headers.get(b"x-request-id", b"").decode("latin-1")
        self.attempt.retry_after_s = float(headers.get(b"retry-after", b"0"))

    def on_body(self, piece: bytes) -> None:
        if self.attempt.status != OK:
            self._refusal += piece
            self.attempt.error = self._refusal.decode("utf-8", "replace")
            return
        for content in self._events.feed(piece):
            if content == DONE:
                self.attempt.done = True
            else:
                self._event(json.loads(content))

    async def _exchange(self, url: str, body: bytes, key: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None and parts.port is not None
        async with asyncio.timeout(CONNECT_S):
            _, self._http = await asyncio.get_running_loop().create_connection(
                HttpConnection, parts.hostname, parts.port
            )
        self.attempt.connected = True
        head = (
            f"POST /v1/completions HTTP/1.1\r\nhost: {parts.netloc}\r\nconnection: close\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            f"idempotency-key: {key}\r\n\r\n"
        )
        await self._http.exchange(head.encode() + body, self)

    def _event(self, event: dict[str, Any]) -> None:
        attempt = self.attempt
        if "error" in event:
            attempt.error = json.dumps(event["error"])
            return
        for choice in event["choices"]:
            attempt.text += choice["text"]
            attempt.finish_reason = choice["finish_reason"] or attempt.finish_reason
            attempt.times_s.append(time.monotonic())
            attempt.margin = min([attempt.margin, *_margins(choice)])
        if event.get("usage"):
            attempt.num_tokens = event["usage"]["completion_tokens"]


def _margins(choice: dict[str, Any]) -> Iterator[float]:
    """Of each of its tokens; 0 where the two likeliest have the same text."""
    for likeliest in (choice.get("logprobs") or {}).get("top_logprobs") or ():
        first, *others = sorted(likeliest.values(), reverse=True)
        yield first - others[0] if others else 0.0
