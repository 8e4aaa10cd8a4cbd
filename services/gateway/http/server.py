"""The uvicorn server that runs the gateway's app."""

import asyncio
import contextlib
import functools
import math
import signal
import socket
from collections.abc import Iterator
from types import FrameType
from typing import Any, cast

import uvicorn
from fastapi import FastAPI

from services.gateway.http.limits import HttpLimits, file_limit
from services.gateway.http.open_connections import OpenConnections
from services.gateway.http.protocol import GatewayProtocol
from shared.settings.groups import LimitSettings

KEEP_ALIVE_S = 75
LAST_WORDS_S = 5
"""after the drain, time to send the error events of what did not finish"""
CHUNK_FRAMING_BYTES = 64 * 1024
"""what the framing of a chunked body may add to it"""
CONNECTIONS_PER_REQUEST = 2
ADMIN_CONNECTIONS = 64
MIN_CONNECTIONS = 4096


def http_limits(limits: LimitSettings) -> HttpLimits:
    """Room for every request the gateway may own, as many idle connections, and no more than
    the process can open."""
    wanted = max(MIN_CONNECTIONS, CONNECTIONS_PER_REQUEST * limits.max_live_requests)
    can_open = max(1, file_limit() - HttpLimits.num_probe_connections)
    return HttpLimits(
        body_bytes=limits.max_body_bytes + CHUNK_FRAMING_BYTES,
        num_connections=min(wanted, can_open),
    )


class HttpServer(uvicorn.Server):
    """A server that says when it was told to stop."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.stopping = asyncio.Event()

    def refuse_unfinished(self) -> None:
        """No request that has not come whole is waited for any longer."""
        for connection in list(self.server_state.connections):
            cast(GatewayProtocol, connection).refuse_unfinished()

    def has_connections(self) -> bool:
        """Each may bring one more request after it was told to stop."""
        return bool(self.server_state.connections)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """uvicorn's would raise the signal again at its end, before the rest could be closed."""
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.stopping.set()
        await super().shutdown(sockets)


class AdminServer(HttpServer):
    """A second server, next to the clients' one, which alone hears signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def http_server(app: FastAPI, drain_s: float, limits: HttpLimits) -> HttpServer:
    """Not started; run with `await server.serve(sockets=[bound socket])`."""
    return HttpServer(_config(app, limits, math.ceil(drain_s) + LAST_WORDS_S))


def admin_server(app: FastAPI) -> AdminServer:
    """The same for the few who look after the gateway; end it with `should_exit`."""
    limits = HttpLimits(num_connections=ADMIN_CONNECTIONS, num_probe_connections=0, last_call_s=0.0)
    return AdminServer(_config(app, limits, grace_s=1))


def _config(app: FastAPI, limits: HttpLimits, grace_s: int) -> uvicorn.Config:
    protocol = functools.partial(GatewayProtocol, OpenConnections(limits))
    return uvicorn.Config(
        app,
        http=cast(Any, protocol),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",  # it would tell each start and end twice, once for each port
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=grace_s,
    )
