"""Step 1 of a request: from its first byte to what its text means.

All of it under the request's deadline, its client's presence and the gateway's byte budget.
"""

import time
from dataclasses import dataclass

from starlette.requests import Request

from services.gateway.http.api_keys import tenant_of
from services.gateway.http.body import read_body
from services.gateway.http.byte_budget import ByteBudget, ByteShare
from services.gateway.http.client_connection import while_connected
from services.gateway.http.deadline import Deadline
from services.gateway.http.idempotency import client_key, idempotency_key
from services.gateway.prompt.prepared import PlainText, TokenList
from services.gateway.prompt.shown_prompt import shown_bytes
from services.gateway.prompt.text_work.text_worker import Answer, Kind
from services.gateway.routes.served import Served, ServedModels
from shared.settings.groups import LimitSettings
from shared.state.records import ClientKey

BYTES_PER_TOKEN = 40
"""a Python integer and its place in a tuple"""
BYTES_PER_HASH = 80


@dataclass(frozen=True)
class Incoming:
    """A request that was read."""

    received_ns: int
    """wall clock when its body was complete"""
    served: Served
    """the model that it is for"""
    answer: Answer
    deadline: Deadline
    share: ByteShare
    """what it holds of the byte budget; whoever has it releases it"""
    client_key: ClientKey | None


class Intake:
    """Reads the requests of one gateway."""

    def __init__(self, limits: LimitSettings, models: ServedModels) -> None:
        self._limits = limits
        self._models = models
        self._budget = ByteBudget()

    async def read(self, request: Request, kind: Kind) -> Incoming:
        """RequestError if it is wrong; OverloadedError, AttemptError or ClientGoneError if there
        is no room, no time or no client left."""
        tenant = tenant_of(request.scope).name
        named = idempotency_key(request.headers)
        deadline = Deadline.of(request, self._limits.request_timeout_s)
        share = self._budget.share()
        try:
            async with deadline.kept():
                body = await read_body(request, self._limits.max_body_bytes, share)
                received_ns = time.time_ns()
                key = client_key(named, tenant, request.url.path, body) if named else None
                reading = self._read_text(kind, body, tenant)
                served, answer = await while_connected(request.receive, reading)
            share.resize(held_bytes(answer))
        except BaseException:
            share.release()
            raise
        return Incoming(received_ns, served, answer, deadline, share, key)

    async def _read_text(self, kind: Kind, body: bytes, tenant: str) -> tuple[Served, Answer]:
        served = await self._models.of_body(body)
        return served, await served.text.read(kind, body, tenant)


def held_bytes(answer: Answer) -> int:
    """What an answer keeps in memory for as long as it lives."""
    if isinstance(answer, PlainText):
        return len(answer.text.encode())
    if isinstance(answer, TokenList):
        return BYTES_PER_TOKEN * len(answer.token_ids)
    return (
        shown_bytes(answer)
        + len(answer.echo.encode())
        + sum(
            BYTES_PER_TOKEN * len(prompt.token_ids) + BYTES_PER_HASH * len(prompt.block_hashes)
            for prompt in answer.prompts
        )
    )
