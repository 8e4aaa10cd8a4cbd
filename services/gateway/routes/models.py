"""GET /v1/models and /v1/models/{id}."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from services.gateway.http.errors import json_response
from services.gateway.prompt.request_fields import check_model
from services.gateway.prompt.served_model import ServedModel
from services.gateway.prompt.text_work.text_pool import TextPool


class ModelsRoutes:
    """The one model served here."""

    def __init__(self, model: ServedModel, text: TextPool) -> None:
        self._model = model
        self._text = text

    async def every(self, request: Request) -> Response:
        return json_response(request, {"object": "list", "data": [self._card()]})

    async def one(self, request: Request) -> Response:
        check_model(request.path_params["name"].removesuffix("/"), self._model.name)
        return json_response(request, self._card())

    def _card(self) -> dict[str, Any]:
        return {
            "id": self._model.name,
            "object": "model",
            "created": self._model.created_s,
            "owned_by": "baton",
            "root": self._model.root or self._model.name,
            "parent": None,
            "max_model_len": self._text.max_model_len,
        }
