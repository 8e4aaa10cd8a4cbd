"""POST /tokenize and /detokenize."""

from starlette.requests import Request
from starlette.responses import Response

from services.gateway.http.body import read_body
from services.gateway.http.errors import json_response
from services.gateway.prompt.ignored_fields import told
from services.gateway.prompt.prompt_reader import PlainText, TokenList
from services.gateway.prompt.text_pool import TextPool
from shared.settings import Settings


class TextRoutes:
    """The tokenizer as clients may use it."""

    def __init__(self, settings: Settings, text: TextPool) -> None:
        self._settings = settings
        self._text = text

    async def tokenize(self, request: Request) -> Response:
        body = await read_body(request, self._settings.max_body_bytes)
        answer = await self._text.read("tokenize", body)
        assert isinstance(answer, TokenList)
        payload = {
            "tokens": answer.token_ids,
            "count": len(answer.token_ids),
            "max_model_len": self._text.max_model_len,
        }
        if answer.names is not None:
            payload["token_strs"] = answer.names
        return json_response(request, payload, headers=told(answer.ignored))

    async def detokenize(self, request: Request) -> Response:
        body = await read_body(request, self._settings.max_body_bytes)
        answer = await self._text.read("detokenize", body)
        assert isinstance(answer, PlainText)
        return json_response(request, {"prompt": answer.text}, headers=told(answer.ignored))
