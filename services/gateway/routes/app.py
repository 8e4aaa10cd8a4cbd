"""The gateway's HTTP application: routes and what an exception turns into.

No middleware: it would cost every chunk of every stream. Each answer carries its own headers.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import cast

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from services.gateway.answer.submit_order import PromptSharing
from services.gateway.http.api_keys import ApiKeys
from services.gateway.http.body import UnreadResponse
from services.gateway.http.client_connection import ClientGoneError
from services.gateway.http.errors import (
    error_response,
    http_exception_response,
    internal_error_response,
)
from services.gateway.http.message_errors import MESSAGES_PATH
from services.gateway.http.protocol import body_is_unread
from services.gateway.routes.generate import GenerateRoutes
from services.gateway.routes.intake import Intake
from services.gateway.routes.models import ModelsRoutes
from services.gateway.routes.openapi import DocsRoutes
from services.gateway.routes.page import PageRoutes
from services.gateway.routes.served import ServedModels
from services.gateway.routes.status import StatusRoutes
from services.gateway.routes.text import TextRoutes
from shared.errors import BatonError
from shared.settings.groups import LimitSettings, NetworkSettings

Route = Callable[[Request], Awaitable[Response]]

CLIENT_GONE_STATUS = 499
UNREAD_STATUSES = (401, 413, 503, 504)
"""errors that do not wait for the rest of the body"""


def create_app(
    limits: LimitSettings,
    network: NetworkSettings,
    sharing: PromptSharing,
    models: ServedModels,
    status: StatusRoutes,
) -> FastAPI:
    """What clients use. Whoever made their texts closes them. Where there are keys, all but probes
    and documentation needs one. SettingsError if the file of keys is of no use."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    intake = Intake(limits, models)
    generate = GenerateRoutes(limits, sharing, intake)
    texts = TextRoutes(intake)
    cards = ModelsRoutes(models)
    facts = _facts(status) if network.operator_paths == "both" else {}
    docs = DocsRoutes(status.release, hidden=_facts(status).keys() - facts.keys())
    admitted = partial(_admitted, ApiKeys.read(network.api_keys_file))
    for path, post in {
        "/v1/chat/completions": generate.chat,
        "/v1/completions": generate.completion,
        "/v1/responses": generate.response,
        MESSAGES_PATH: generate.message,
        f"{MESSAGES_PATH}/count_tokens": texts.count,
        "/tokenize": texts.tokenize,
        "/detokenize": texts.detokenize,
    }.items():
        for each in (path, f"{path}/"):
            app.add_api_route(each, admitted(post), methods=["POST"], response_model=None)
    gets = {"/v1/models": cards.every, "/v1/models/{name:path}": cards.one}
    _add_gets(app, {path: admitted(get) for path, get in (gets | facts).items()})
    _add_gets(app, {"/openapi.json": docs.openapi, "/docs": docs.docs} | _probes(status))
    _add_errors(app)
    return app


def create_admin_app(status: StatusRoutes) -> FastAPI:
    """What probes, scrapers and operators ask, on a port of its own."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    _add_gets(app, _probes(status) | _facts(status) | {"/ui": PageRoutes().page})
    _add_errors(app)
    return app


def _admitted(keys: ApiKeys, route: Route) -> Route:
    """The route, for clients with a key. Nothing of the body is read before."""

    async def ask(request: Request) -> Response:
        keys.admit(request)
        return await route(request)

    return ask


def _probes(status: StatusRoutes) -> dict[str, Route]:
    return {
        "/health": status.health,
        "/ping": status.health,
        "/ready": status.ready,
        "/version": status.version,
    }


def _facts(status: StatusRoutes) -> dict[str, Route]:
    """Of the workers and of requests."""
    return {
        "/metrics": status.metrics,
        "/v1/capacity": status.capacity,
        "/v1/baton/status": status.status,
        "/v1/baton/live": status.live.live,
        "/v1/baton/watch": status.live.watch,
        "/v1/baton/requests": status.requests,
        "/v1/baton/requests/{rid}": status.receipt,
    }


def _add_gets(app: FastAPI, routes: Mapping[str, Route]) -> None:
    """A slash at the end changes nothing."""
    for path, get in routes.items():
        for each in (path, f"{path}/"):
            app.add_api_route(each, get, methods=["GET", "HEAD"], response_model=None)


def _add_errors(app: FastAPI) -> None:
    app.add_exception_handler(BatonError, _baton_error)
    app.add_exception_handler(HTTPException, _http_exception)
    app.add_exception_handler(ClientGoneError, _client_gone)
    app.add_exception_handler(Exception, _bug)
    app.router.redirect_slashes = False


async def _baton_error(request: Request, error: Exception) -> Response:
    response = error_response(request, cast(BatonError, error))
    unread = response.status_code in UNREAD_STATUSES and body_is_unread(request.scope)
    return UnreadResponse(response) if unread else response


async def _http_exception(request: Request, error: Exception) -> Response:
    return http_exception_response(request, cast(HTTPException, error))


async def _client_gone(request: Request, error: Exception) -> Response:
    """Nobody reads this; the framework wants a response."""
    return Response(status_code=CLIENT_GONE_STATUS)


async def _bug(request: Request, error: Exception) -> Response:
    return internal_error_response(request)
