"""One generation as an HTTP answer: streamed as server-sent events, or whole.

Both run under a ClientConnection: when the client leaves, stops reading, or a stop string ends
the text, the generation is told at once. A failure before the first byte gets its own status;
afterwards it is the stream's last event, without `[DONE]`.
"""

import logging
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from services.gateway.answer_shape import AnswerIdentity, AnswerShape, answer_object
from services.gateway.answer_text import AnswerText
from services.gateway.client_connection import ClientConnection, ClientGoneError
from services.gateway.errors import error_body, error_response, json_response
from services.gateway.generation import Delta, Generation
from services.gateway.http_protocol import drop_connection, mark_event_stream
from services.gateway.prompt_reader import PreparedRequest
from services.gateway.request_id import request_id
from services.gateway.sse import DONE, ChunkWriter, error_event
from services.gateway.usage import usage
from shared.errors import AttemptError, BatonError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Answer:
    """Everything an answer is made of."""

    prepared: PreparedRequest
    generation: Generation
    text: AnswerText
    shape: AnswerShape
    identity: AnswerIdentity

    def usage(self) -> dict[str, Any]:
        """What the request cost so far."""
        cached = self.generation.cached_tokens
        return usage(len(self.prepared.prompt_ids), self.text.num_tokens, cached)

    async def push(self, delta: Delta) -> str:
        """Text to show; ends the generation when it reached a stop string."""
        text = self.text.push(delta)
        if self.text.stopped:
            await self.generation.finish("stop", self.text.num_tokens)
        return text


class AnswerResponse(Response):
    """Sends one answer; cancels its generation on every way out but the end of the text."""

    def __init__(self, request: Request, answer: Answer, slow_reader_s: float) -> None:
        super().__init__()
        self._request = request
        self._answer = answer
        self._slow_reader_s = slow_reader_s
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = ClientConnection(receive, send, self._slow_reader_s)
        try:
            await client.run(self._run(scope, client))
        except ClientGoneError:
            log.info("%s: the client left", self._answer.identity.rid)
            await drop_connection(scope)

    async def _run(self, scope: Scope, client: ClientConnection) -> None:
        try:
            await self._send_answer(scope, client)
        except BatonError as error:
            await self._send_failure(error, scope, client)
        finally:
            if self._answer.text.finish_reason is None:
                await self._answer.generation.cancel()

    async def _send_answer(self, scope: Scope, client: ClientConnection) -> None:
        raise NotImplementedError

    async def _send_failure(
        self, error: BatonError, scope: Scope, client: ClientConnection
    ) -> None:
        log.warning("%s: %s", self._answer.identity.rid, error)
        response = error_response(self._request, error)
        await response(scope, _nothing, client.send)


class WholeResponse(AnswerResponse):
    """The answer in one JSON object."""

    async def _send_answer(self, scope: Scope, client: ClientConnection) -> None:
        answer = self._answer
        parts: list[str] = []
        async for delta in answer.generation:
            parts.append(await answer.push(delta))
            if answer.text.finish_reason is not None:
                break
        _check_ended(answer)
        body = self._body("".join(parts))
        await json_response(self._request, body)(scope, _nothing, client.send)

    def _body(self, text: str) -> dict[str, Any]:
        answer = self._answer
        assert answer.text.finish_reason is not None
        entries = answer.text.take_entries() if answer.prepared.sampling.logprobs >= 0 else None
        choice = answer.shape.choice(text, entries, answer.text.finish_reason)
        return answer_object(answer.shape, answer.identity, choice, answer.usage())


class StreamResponse(AnswerResponse):
    """The answer as server-sent events."""

    def __init__(self, request: Request, answer: Answer, slow_reader_s: float) -> None:
        super().__init__(request, answer, slow_reader_s)
        prepared = answer.prepared
        self._chunks = ChunkWriter(answer.shape, answer.identity, with_usage=prepared.include_usage)
        self._plain = prepared.sampling.logprobs < 0 and not prepared.continuous_usage

    async def _send_answer(self, scope: Scope, client: ClientConnection) -> None:
        answer = self._answer
        async for delta in answer.generation:
            text = await answer.push(delta)
            body = self._events(text)
            if not self._started:
                await self._start(scope, client)
                body = self._chunks.first(self._running_usage()) + body
            if body:
                await client.send({"type": "http.response.body", "body": body, "more_body": True})
            if answer.text.finish_reason is not None:
                break
        _check_ended(answer)
        await client.send({"type": "http.response.body", "body": b"", "more_body": False})

    def _events(self, text: str) -> bytes:
        """The events one delta causes; none if its text is held back."""
        if self._plain and self._answer.text.finish_reason is None:
            return self._chunks.text(text) if text else b""
        entries = self._answer.text.take_entries()
        events = b""
        if text or entries:
            wanted = entries if self._answer.prepared.sampling.logprobs >= 0 else None
            events = self._chunks.text_with(text, wanted, self._running_usage())
        return events + self._ending()

    def _ending(self) -> bytes:
        answer = self._answer
        if answer.text.finish_reason is None:
            return b""
        events = self._chunks.last(answer.text.finish_reason, self._running_usage())
        if answer.prepared.include_usage:
            events += self._chunks.usage(answer.usage())
        return events + DONE

    def _running_usage(self) -> dict[str, Any] | None:
        return self._answer.usage() if self._answer.prepared.continuous_usage else None

    async def _start(self, scope: Scope, client: ClientConnection) -> None:
        self._started = True
        mark_event_stream(scope)
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
            (b"x-request-id", request_id(scope).encode()),
        ]
        await client.send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _send_failure(
        self, error: BatonError, scope: Scope, client: ClientConnection
    ) -> None:
        if not self._started:
            await super()._send_failure(error, scope, client)
            return
        log.warning("%s: %s", self._answer.identity.rid, error)
        body = error_event(error_body(error))
        await client.send({"type": "http.response.body", "body": body, "more_body": False})


def _check_ended(answer: Answer) -> None:
    """A generation that just stops is a failure, never an answer cut short."""
    if answer.text.finish_reason is None:
        raise AttemptError("the answer ended early", code="internal_error")


async def _nothing() -> Any:
    """A `receive` for responses that read nothing."""
    raise AssertionError("a response does not read the request")
