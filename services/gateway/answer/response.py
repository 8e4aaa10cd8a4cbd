"""The choices of one request as an HTTP answer: streamed as server-sent events, or whole.

Both run under a ClientConnection: when the client leaves, stops reading, or a stop string ends
a text, its generation is told at once. A failure before the first byte gets its own status;
afterwards it is the stream's last event. A writer knows the shape of the API; nothing here does.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from services.gateway.answer.answer import Answer
from services.gateway.answer.choice import Usage
from services.gateway.answer.writer import BodyWriter, ChoiceWriter, StreamWriter
from services.gateway.http.byte_budget import ByteShare
from services.gateway.http.chunk_stream import ChunkStream, chunk_stream
from services.gateway.http.client_connection import ClientConnection, ClientGoneError
from services.gateway.http.errors import error_response, json_response
from services.gateway.http.event_headers import event_headers
from services.gateway.http.protocol import drop_connection, mark_event_stream
from services.gateway.owner.generation import Delta
from shared.errors import BatonError
from shared.settings.groups import LimitSettings
from shared.text.answer_text import AnswerText

logger = logging.getLogger(__name__)


class AnswerResponse(Response):
    """Sends one answer; cancels its choices on every way out but the end of their texts."""

    def __init__(
        self, request: Request, answer: Answer, limits: LimitSettings, share: ByteShare
    ) -> None:
        """`share`: what its prompts hold of the byte budget, released at the end."""
        super().__init__()
        self._share = share
        self._request = request
        self._answer = answer
        self._limits = limits
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        group, limit_s = self._answer.group, self._limits.slow_reader_s
        client = ClientConnection(receive, send, limit_s, on_gone=group.give_up)
        try:
            await client.run(self._run(scope, client))
        except ClientGoneError:
            logger.debug("%s: the client left", self._answer.identity.rid)
            await drop_connection(scope)
        finally:
            self._share.release()

    async def _run(self, scope: Scope, client: ClientConnection) -> None:
        try:
            await self._send_answer(scope, client)
        except BatonError as error:
            await self._answer.group.cancel()
            await self._send_failure(error, scope, client)
        finally:
            await self._answer.group.cancel()

    async def _send_answer(self, scope: Scope, client: ClientConnection) -> None:
        raise NotImplementedError

    async def _send_failure(
        self, error: BatonError, scope: Scope, client: ClientConnection
    ) -> None:
        logger.warning("%s: %s", self._answer.identity.rid, error)
        response = error_response(self._request, error)
        await response(scope, _nothing, client.send)


class WholeResponse(AnswerResponse):
    """The answer in one JSON object."""

    def __init__(
        self,
        request: Request,
        answer: Answer,
        writer: BodyWriter,
        limits: LimitSettings,
        share: ByteShare,
    ) -> None:
        super().__init__(request, answer, limits, share)
        self._writer = writer

    async def _send_answer(self, scope: Scope, client: ClientConnection) -> None:
        answer = self._answer
        async for arrived in answer.group:
            for index, delta in arrived:
                text = answer.texts[index]
                self._writer.add(index, text.push(delta))
                if text.finish_reason is not None:
                    await answer.close(index)
        body = self._writer.body()
        receipt = await answer.receipt()
        if receipt is not None:
            body["baton"] = receipt
        response = json_response(self._request, body, headers=answer.headers)
        await response(scope, _nothing, client.send)


class StreamResponse(AnswerResponse):
    """The answer as server-sent events; those of different choices come as they come."""

    def __init__(
        self,
        request: Request,
        answer: Answer,
        writer: StreamWriter,
        limits: LimitSettings,
        share: ByteShare,
    ) -> None:
        super().__init__(request, answer, limits, share)
        asked = answer.prepared
        self._writer = writer
        self._choices: Sequence[ChoiceWriter] = writer.choices
        self._plain = not (answer.with_logprobs or asked.continuous_usage or asked.return_token_ids)
        self._num_ended = 0
        self._stream: ChunkStream | None = None
        self._wrote = False
        """at once, since a word was due last"""
        self._last_shown: dict[int, str] = {}
        """what the delta that ended a choice's text showed, where it was read at once"""

    async def _send_answer(self, scope: Scope, client: ClientConnection) -> None:
        begins = True
        while arrived := await self._arrived(scope, client):
            body = b""
            for index, delta in arrived:
                choice = self._choices[index]
                shown = self._last_shown.pop(index, None)
                if shown is None:
                    body += choice.opening(self._so_far())
                    shown = choice.text.push(delta)
                if choice.text.finish_reason is not None:
                    body += await self._last_events(index, shown)
                elif self._plain:
                    body += choice.plain(shown)
                else:
                    body += choice.events(shown, self._so_far())
            await self._send_events(body, scope, client)
            if begins:
                self._read_at_once(scope)
                begins = False
        await client.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _arrived(self, scope: Scope, client: ClientConnection) -> list[tuple[int, Delta]]:
        """What arrives next, nothing at the end. While nothing does, the writer tells proxies
        that the answer goes on; not before it is sure that the request is not refused."""
        while (arrived := await self._arrived_in_time()) is None:
            if self._answer.group.accepted and not self._wrote:
                await self._send_events(self._writer.idle(), scope, client)
            self._wrote = False
        return arrived

    async def _arrived_in_time(self) -> list[tuple[int, Delta]] | None:
        """None: nothing for so long that a word is due."""
        try:
            async with asyncio.timeout(self._limits.keepalive_s or None):
                return await anext(self._answer.group, [])
        except TimeoutError:
            return None

    async def _send_events(self, events: bytes, scope: Scope, client: ClientConnection) -> None:
        if not self._started:
            await self._start(scope, client)
        if events:
            await client.send({"type": "http.response.body", "body": events, "more_body": True})

    def _read_at_once(self, scope: Scope) -> None:
        """From here on tokens are written as they come, where a text is all there is to them.
        What reads parts out of a text stays in this task: its bugs are this answer's alone."""
        texts = self._answer.texts
        if self._plain and all(isinstance(text, AnswerText) for text in texts):
            self._stream = chunk_stream(scope)
        if self._stream is not None:
            self._answer.group.read_with(self._write_at_once)

    def _write_at_once(self, index: int, delta: Delta) -> bool:
        """Step 8: write a delta from the middle of a choice; False if the task has to do it."""
        assert self._stream is not None
        if delta.finish_reason is not None or not self._stream.ready:
            return False
        choice = self._choices[index]
        shown = choice.text.push(delta)
        if choice.text.finish_reason is not None:
            self._last_shown[index] = shown
            return False
        if events := choice.plain(shown):
            self._stream.write(events)
            self._wrote = True
        return True

    async def _last_events(self, index: int, shown: str) -> bytes:
        """The events that the last text of a choice causes."""
        await self._answer.close(index)
        choice = self._choices[index]
        self._num_ended += 1
        if self._num_ended < len(self._choices):
            return choice.last(shown, self._so_far())
        return self._writer.ending(index, shown, await self._answer.receipt())

    def _so_far(self) -> Usage | None:
        return self._answer.usage() if self._answer.prepared.continuous_usage else None

    async def _start(self, scope: Scope, client: ClientConnection) -> None:
        self._started = True
        mark_event_stream(scope)
        headers = [
            *event_headers(scope),
            *((name.encode(), value.encode()) for name, value in self._answer.headers.items()),
        ]
        await client.send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _send_failure(
        self, error: BatonError, scope: Scope, client: ClientConnection
    ) -> None:
        if not self._started:
            await super()._send_failure(error, scope, client)
            return
        logger.warning("%s: %s", self._answer.identity.rid, error)
        body = self._writer.failure(error)
        await client.send({"type": "http.response.body", "body": body, "more_body": False})


async def _nothing() -> Any:
    """A `receive` for responses that read nothing."""
    raise AssertionError("a response does not read the request")
