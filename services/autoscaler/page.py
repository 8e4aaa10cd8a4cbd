"""What the autoscaler answers over HTTP.

/health      its loops turn
/ready       it has seen the cell, and decided
/explain     the last decision, with its reasons
/wanted      {"prefill": 3, "decode": 2}, as KEDA's metrics-api trigger reads it
/metrics     for Prometheus
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator

import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client import CollectorRegistry, generate_latest

from services.autoscaler.autoscaler import Autoscaler
from services.autoscaler.explanation import explanation, undecided
from services.autoscaler.metrics import AutoscalerCollector
from shared.loops import Loops


def make_page(autoscaler: Autoscaler, loops: Loops, mode: str) -> FastAPI:
    """`mode`: as it was started."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    registry = CollectorRegistry()
    registry.register(AutoscalerCollector(lambda: autoscaler.told, _totals(autoscaler, loops)))

    @app.get("/health")
    def health() -> Response:
        trouble = loops.trouble()
        return PlainTextResponse(trouble or "ok", 503 if trouble else 200)

    @app.get("/ready")
    def ready() -> Response:
        if autoscaler.told is None:
            return PlainTextResponse(undecided(autoscaler.unseen_because), 503)
        return PlainTextResponse("ready")

    @app.get("/explain")
    def explain() -> Response:
        return JSONResponse(explanation(autoscaler.told, mode, autoscaler.unseen_because))

    @app.get("/wanted")
    def replicas() -> Response:
        if autoscaler.told is None:
            return JSONResponse({"error": undecided(autoscaler.unseen_because)}, 503)
        return JSONResponse(autoscaler.told.wanted)

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(generate_latest(registry), media_type="text/plain; version=0.0.4")

    return app


def _totals(autoscaler: Autoscaler, loops: Loops) -> Callable[[], dict[str, int]]:
    return lambda: autoscaler.counters | {"loop_failures": sum(loops.failures().values())}


class PageServer:
    """Answers until it is closed; signals are somebody else's."""

    def __init__(self, app: FastAPI, host: str, port: int) -> None:
        config = uvicorn.Config(
            app, log_config=None, log_level="warning", access_log=False, lifespan="off"
        )
        self._server = _Quiet(config)
        self._address = host, port
        self._serving: asyncio.Task[None] | None = None

    def start(self) -> int:
        """Returns the port; 0 took a free one. OSError when it is taken."""
        sock = socket.create_server(self._address)
        self._serving = asyncio.create_task(self._server.serve(sockets=[sock]))
        port: int = sock.getsockname()[1]
        return port

    async def close(self) -> None:
        self._server.should_exit = True
        if self._serving is not None:
            await self._serving


class _Quiet(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
