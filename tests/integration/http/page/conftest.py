"""The admin port behind a real server, over a door that a test scripts."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from services.gateway.http.server import AdminServer, admin_server
from services.gateway.owner.records.row import Row
from services.gateway.routes.app import create_admin_app
from services.gateway.routes.status import StatusRoutes
from tests.support.cases.live_body import MARKUP, live_body
from tests.support.fakes.served_app import ScriptedDoor, models_of


@dataclass
class AdminPort:
    """A running one."""

    url: str
    door: ScriptedDoor
    server: AdminServer


@pytest.fixture
async def admin() -> AsyncIterator[AdminPort]:
    door = ScriptedDoor(lambda _: ())
    door.live_body = live_body()
    door.rows.append(
        Row("r/1", "", "t", "failed", "", MARKUP, 1, 9, 4, 7, 5.0, 2.0, "p0", MARKUP, 2)
    )
    server = admin_server(create_admin_app(StatusRoutes(models_of(door), lambda: b"", "1.2.3")))
    sock = socket.create_server(("127.0.0.1", 0))
    serving = asyncio.ensure_future(server.serve(sockets=[sock]))
    while not server.started and not serving.done():  # noqa: ASYNC110  (no event to await)
        await asyncio.sleep(0.005)
    try:
        yield AdminPort(f"http://127.0.0.1:{sock.getsockname()[1]}", door, server)
    finally:
        server.should_exit = server.force_exit = True
        with contextlib.suppress(asyncio.CancelledError):
            await serving
        sock.close()
