"""POST /v1/chat/completions and /v1/completions (steps 1 and 8 of a request's life)."""

import time

from starlette.requests import Request
from starlette.responses import Response

from services.gateway.answer_response import Answer, StreamResponse, WholeResponse
from services.gateway.answer_shape import AnswerIdentity, AnswerShape, ChatShape, TextShape
from services.gateway.answer_text import AnswerText
from services.gateway.generation import Endpoint, GenerateRequest
from services.gateway.observation import request_trace
from services.gateway.prompt_reader import PreparedRequest
from services.gateway.request_body import read_body
from services.gateway.request_id import request_id
from services.gateway.served_model import ServedModel
from services.gateway.serving import Dispatch
from services.gateway.text_pool import TextPool
from shared.settings import Settings

TENANT = "default"


class GenerateRoutes:
    """The two endpoints that generate; they differ in the endpoint's name only."""

    def __init__(
        self, settings: Settings, model: ServedModel, dispatcher: Dispatch, text: TextPool
    ) -> None:
        self._settings = settings
        self._model = model
        self._dispatcher = dispatcher
        self._text = text

    async def chat(self, request: Request) -> Response:
        return await self._answer(request, "chat")

    async def completion(self, request: Request) -> Response:
        return await self._answer(request, "text")

    async def _answer(self, request: Request, endpoint: Endpoint) -> Response:
        """Step 1: read, validate, template, tokenize, hash; then hand over to the dispatcher.

        Step 8 is in the response: sequence of deltas to text to events."""
        body = await read_body(request, self._settings.max_body_bytes)
        received_ns = time.time_ns()
        prepared = await self._text.read(endpoint, body)
        assert isinstance(prepared, PreparedRequest)
        client_trace = request.headers.get("traceparent")
        generation = self._dispatcher.submit(
            GenerateRequest(
                rid=request_id(request.scope),
                tenant=TENANT,
                endpoint=endpoint,
                prompt_ids=prepared.prompt_ids,
                sampling=prepared.sampling,
                timeout_s=self._settings.request_timeout_s,
                traceparent=request_trace(client_trace).traceparent,
                client_traceparent=client_trace,
                received_ns=received_ns,
                block_hashes=prepared.block_hashes,
            )
        )
        answer = Answer(
            prepared=prepared,
            generation=generation,
            text=AnswerText(self._text.tokenizer, prepared.sampling, prepared.stop),
            shape=self._shape(prepared),
            identity=AnswerIdentity(
                request_id(request.scope), self._model.name, received_ns // 10**9
            ),
        )
        response = StreamResponse if prepared.stream else WholeResponse
        return response(request, answer, self._settings.slow_reader_s)

    def _shape(self, prepared: PreparedRequest) -> AnswerShape:
        if prepared.endpoint == "chat":
            return ChatShape(self._text.tokenizer)
        return TextShape(self._text.tokenizer, prepared.sampling.logprobs)
