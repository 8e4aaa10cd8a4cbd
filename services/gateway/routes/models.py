"""GET /v1/models and /v1/models/{id}."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from services.gateway.http.errors import json_response
from services.gateway.routes.served import Served, ServedModels


class ModelsRoutes:
    """The models served here."""

    def __init__(self, models: ServedModels) -> None:
        self._models = models

    async def every(self, request: Request) -> Response:
        cards = [_card(served) for served in self._models]
        return json_response(request, {"object": "list", "data": cards})

    async def one(self, request: Request) -> Response:
        name = request.path_params["name"].removesuffix("/")
        return json_response(request, _card(self._models.named(name)))


def _card(served: Served) -> dict[str, Any]:
    model = served.model
    return {
        "id": model.name,
        "object": "model",
        "created": model.created_s,
        "owned_by": "baton",
        "root": model.root or model.name,
        "parent": None,
        "max_model_len": served.text.max_model_len,
    }
