"""The gateway's HTTP application: routes and what an exception turns into.

No middleware: it would cost every chunk of every stream. Each answer carries its own headers.
"""

from collections.abc import Callable
from typing import cast

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from services.gateway.http.body import TooLargeResponse
from services.gateway.http.client_connection import ClientGoneError
from services.gateway.http.errors import (
    error_response,
    http_exception_response,
    internal_error_response,
)
from services.gateway.prompt.served_model import ServedModel
from services.gateway.prompt.text_pool import TextPool
from services.gateway.routes.generate import GenerateRoutes
from services.gateway.routes.models import ModelsRoutes
from services.gateway.routes.openapi import DocsRoutes
from services.gateway.routes.serving import Dispatch
from services.gateway.routes.status import StatusRoutes
from services.gateway.routes.text import TextRoutes
from shared.errors import BatonError, RequestError
from shared.settings import Settings

CLIENT_GONE_STATUS = 499


def create_app(
    settings: Settings,
    model: ServedModel,
    dispatcher: Dispatch,
    text: TextPool,
    metrics: Callable[[], bytes],
    version: str,
) -> FastAPI:
    """`metrics` returns the Prometheus text. Whoever made `text` closes it."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    generate = GenerateRoutes(settings, model, dispatcher, text)
    texts = TextRoutes(settings, text)
    models = ModelsRoutes(model, text)
    docs = DocsRoutes(version)
    status = StatusRoutes(dispatcher, metrics, version)
    for path, post in {
        "/v1/chat/completions": generate.chat,
        "/v1/completions": generate.completion,
        "/tokenize": texts.tokenize,
        "/detokenize": texts.detokenize,
    }.items():
        for each in (path, f"{path}/"):
            app.add_api_route(each, post, methods=["POST"], response_model=None)
    for path, get in {
        "/v1/models": models.every,
        "/v1/models/{name:path}": models.one,
        "/health": status.health,
        "/ping": status.health,
        "/ready": status.ready,
        "/version": status.version,
        "/metrics": status.metrics,
        "/v1/baton/status": status.status,
        "/v1/baton/requests/{rid}": status.receipt,
        "/openapi.json": docs.openapi,
        "/docs": docs.docs,
    }.items():
        for each in (path, f"{path}/"):
            app.add_api_route(each, get, methods=["GET", "HEAD"], response_model=None)
    app.add_exception_handler(BatonError, _baton_error)
    app.add_exception_handler(HTTPException, _http_exception)
    app.add_exception_handler(ClientGoneError, _client_gone)
    app.add_exception_handler(Exception, _bug)
    app.router.redirect_slashes = False
    return app


async def _baton_error(request: Request, error: Exception) -> Response:
    if isinstance(error, RequestError) and error.status == 413:
        return TooLargeResponse(request, error)
    return error_response(request, cast(BatonError, error))


async def _http_exception(request: Request, error: Exception) -> Response:
    return http_exception_response(request, cast(HTTPException, error))


async def _client_gone(request: Request, error: Exception) -> Response:
    """Nobody reads this; the framework wants a response."""
    return Response(status_code=CLIENT_GONE_STATUS)


async def _bug(request: Request, error: Exception) -> Response:
    return internal_error_response(request)
