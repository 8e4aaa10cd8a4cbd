"""The uvicorn server that runs the gateway's app."""

import math

import uvicorn
from fastapi import FastAPI

from services.gateway.http_protocol import GatewayProtocol
from shared.settings import Settings

KEEP_ALIVE_S = 75
LAST_WORDS_S = 5
"""after the drain, time to send the error events of what did not finish"""


def http_server(app: FastAPI, settings: Settings) -> uvicorn.Server:
    """Not started; run with `await server.serve(sockets=[bound socket])`."""
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=GatewayProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=math.ceil(settings.drain_s) + LAST_WORDS_S,
    )
    return uvicorn.Server(config)
