"""POST of what generates (steps 1 and 8 of a request's life): OpenAI's chat completions,
completions and responses, Anthropic's messages."""

import asyncio
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from services.gateway.answer.answer import Answer
from services.gateway.answer.choice_group import ChoiceGroup
from services.gateway.answer.choice_texts import choice_texts
from services.gateway.answer.completions import CompletionBody, CompletionStream
from services.gateway.answer.echoed_group import EchoedGroup
from services.gateway.answer.group_requests import HttpRequest, choice_requests
from services.gateway.answer.messages.body import MessageBody
from services.gateway.answer.messages.events import MessageStream
from services.gateway.answer.receipt_field import receipt_wanted
from services.gateway.answer.response import AnswerResponse, StreamResponse, WholeResponse
from services.gateway.answer.responses.body import ResponseBody
from services.gateway.answer.responses.events import ResponseStream
from services.gateway.answer.shape import AnswerIdentity, ChatShape, TextShape
from services.gateway.answer.submit_order import PromptSharing, SubmitOrder
from services.gateway.answer.writer import AnswerWriters
from services.gateway.http.api_keys import tenant_of
from services.gateway.http.priority import priority_of
from services.gateway.http.request_id import request_id
from services.gateway.prompt.prepared import PreparedRequest
from services.gateway.prompt.shapes.parsers import Api
from services.gateway.prompt.text_work.text_pool import TextPool
from services.gateway.routes.intake import Incoming, Intake
from services.gateway.routes.served import Served
from shared.settings.groups import LimitSettings


class GenerateRoutes:
    """The endpoints that generate: each reads its own body and writes its own answer; what is
    between is one."""

    def __init__(
        self,
        limits: LimitSettings,
        sharing: PromptSharing,
        intake: Intake,
    ) -> None:
        self._limits = limits
        self._sharing = sharing
        self._intake = intake
        self._starting = asyncio.Lock()

    async def chat(self, request: Request) -> Response:
        return await self._answer(request, "chat")

    async def completion(self, request: Request) -> Response:
        return await self._answer(request, "text")

    async def message(self, request: Request) -> Response:
        return await self._answer(request, "messages")

    async def response(self, request: Request) -> Response:
        return await self._answer(request, "responses")

    async def _answer(self, request: Request, api: Api) -> Response:
        """Step 1: read, validate, template, tokenize, hash; then hand over to the owner.

        Step 8 is in the response: sequence of deltas to text to events."""
        incoming = await self._intake.read(request, api)
        try:
            return await self._started(request, api, incoming)
        except BaseException:
            incoming.share.release()
            raise

    async def _started(self, request: Request, api: Api, incoming: Incoming) -> AnswerResponse:
        """Its choices are submitted first, so that workers start; the response ends them."""
        prepared, received_ns, served = incoming.answer, incoming.received_ns, incoming.served
        assert isinstance(prepared, PreparedRequest)
        with_receipt = receipt_wanted(request.headers)
        tenant = tenant_of(request.scope)
        http = HttpRequest(
            rid=request_id(request.scope),
            tenant=tenant.name,
            max_live=tenant.max_live_requests,
            priority=priority_of(request.headers, prepared.priority, tenant),
            weight=tenant.weight,
            endpoint=prepared.endpoint,
            timeout_s=incoming.deadline.left_s(),
            limit_s=incoming.deadline.limit_s,
            client_traceparent=request.headers.get("traceparent"),
            received_ns=received_ns,
            client_key=incoming.client_key,
        )
        group = await self._group(http, prepared, served).start()
        try:
            answer = Answer(
                prepared=prepared,
                group=group,
                texts=choice_texts(served.text.tokenizer, prepared, group),
                identity=AnswerIdentity(http.rid, served.model.name, received_ns // 10**9),
                tokenizer=served.text.tokenizer,
                final_receipt=served.door.final_receipt if with_receipt else None,
            )
            writers = _writers(served.text, api, prepared)
            if prepared.stream:
                stream = writers.stream(answer)
                return StreamResponse(request, answer, stream, self._limits, incoming.share)
            whole = writers.whole(answer)
            return WholeResponse(request, answer, whole, self._limits, incoming.share)
        except BaseException:
            await group.cancel()
            raise

    def _group(self, http: HttpRequest, prepared: PreparedRequest, served: Served) -> ChoiceGroup:
        lengths = [len(prompt.token_ids) for prompt in prepared.prompts]
        order = SubmitOrder(lengths, prepared.num_choices, self._sharing)
        requests = choice_requests(http, prepared)
        parts = served.door, requests, order, self._starting
        if prepared.stream and prepared.shows_prompt and prepared.scored_top >= 0:
            return EchoedGroup(*parts, prepared, served.text.tokenizer)
        return ChoiceGroup(*parts)


def _writers(pool: TextPool, api: Api, prepared: PreparedRequest) -> AnswerWriters:
    """What writes the answer in the shape that the request had."""
    if api == "messages":
        return AnswerWriters(MessageStream, MessageBody)
    if api == "responses":
        return AnswerWriters(ResponseStream, ResponseBody)
    kind = ChatShape if api == "chat" else TextShape
    shape = kind(pool.tokenizer, tokens_as_ids=prepared.tokens_as_ids)
    stream = partial(CompletionStream, shape=shape)
    return AnswerWriters(stream, partial(CompletionBody, shape=shape))
