"""POST /tokenize, /detokenize and /v1/messages/count_tokens."""

from starlette.requests import Request
from starlette.responses import Response

from services.gateway.http.errors import json_response
from services.gateway.prompt.ignored_fields import told
from services.gateway.prompt.prepared import PlainText, TokenList
from services.gateway.routes.intake import Intake


class TextRoutes:
    """The tokenizer as clients may use it."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake

    async def tokenize(self, request: Request) -> Response:
        incoming = await self._intake.read(request, "tokenize")
        incoming.share.release()
        answer = incoming.answer
        assert isinstance(answer, TokenList)
        payload = {
            "tokens": answer.token_ids,
            "count": len(answer.token_ids),
            "max_model_len": incoming.served.text.max_model_len,
        }
        if answer.names is not None:
            payload["token_strs"] = answer.names
        return json_response(request, payload, headers=told(answer.ignored))

    async def count(self, request: Request) -> Response:
        """As /v1/messages would count the same body's input."""
        incoming = await self._intake.read(request, "count")
        incoming.share.release()
        answer = incoming.answer
        assert isinstance(answer, TokenList)
        count = {"input_tokens": len(answer.token_ids)}
        return json_response(request, count, headers=told(answer.ignored))

    async def detokenize(self, request: Request) -> Response:
        incoming = await self._intake.read(request, "detokenize")
        incoming.share.release()
        answer = incoming.answer
        assert isinstance(answer, PlainText)
        return json_response(request, {"prompt": answer.text}, headers=told(answer.ignored))
