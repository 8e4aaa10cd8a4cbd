"""Link and LinkServer of two releases over real TCP: what they speak, and how they refuse."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import make_dataclass
from typing import Any

import pytest

from shared.challenge import OtherVersionError, Versions
from shared.link import connection as connection_module
from shared.link import link as link_module
from shared.link import server as server_module
from shared.link.link import Link
from shared.link.server import LinkServer
from shared.protocol import SPOKEN, Hello, Message, Ping, Pong
from shared.repeats import Repeats
from tests.support.next_release import NEXT
from tests.unit.gateway.owner.gateway_bench import IDLE

pytestmark = pytest.mark.anyio


def said(kind: str, *values: object) -> Any:
    """A message as another release says it, which may have more fields."""
    fields = [(f"field_{at}", object) for at in range(len(values))]
    return make_dataclass(kind, fields)(*values)


MIGRATE = said("Migrate", "r", ["d.1"])
"""a kind that nobody here knows"""


@asynccontextmanager
async def met(
    to_gateway: asyncio.Queue[Message], to_worker: asyncio.Queue[Message]
) -> AsyncIterator[tuple[Link, LinkServer]]:
    """A gateway and a worker that have said HELLO."""
    server = LinkServer(
        lambda: Hello("prefill", "p.1", "pool"),
        lambda _, message: to_worker.put_nowait(message),
        lambda _: None,
    )
    port = await server.start("127.0.0.1", 0)
    hello = Hello("gateway", "g.1", "pool", to="p.1")
    try:
        link = await Link.dial(
            "127.0.0.1",
            port,
            hello,
            lambda _, message: to_gateway.put_nowait(message),
            lambda _: None,
        )
        link.send(Ping(0))
        await asyncio.wait_for(to_worker.get(), 5)
        yield link, server
        await link.close()
    finally:
        await server.close()


@pytest.mark.parametrize("newer", [link_module, server_module], ids=["gateway", "worker"])
async def test_the_older_one_is_spoken_to_as_it_understands(
    newer: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """More fields, and kinds of messages that it does not know, once a step: said once."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(connection_module, "_skipped", Repeats())
    monkeypatch.setattr(newer, "SPOKEN", NEXT)
    to_gateway: asyncio.Queue[Message] = asyncio.Queue()
    to_worker: asyncio.Queue[Message] = asyncio.Queue()
    async with met(to_gateway, to_worker) as (link, server):
        assert link.version == SPOKEN.newest
        for _ in range(3):
            link.send(MIGRATE)
            server.peers[0].send(MIGRATE)
        link.send(said("Ping", 1, 2, ["more"]))
        server.peers[0].send(said("Pong", 1, IDLE, {"steps": 3}, {}, (), {}, "more"))
        assert await asyncio.wait_for(to_worker.get(), 5) == Ping(1, 2)
        assert await asyncio.wait_for(to_gateway.get(), 5) == Pong(1, IDLE, {"steps": 3})
        assert not link.closed
    lines = [line for line in caplog.messages if "unknown message 'migrate'" in line]
    assert len(lines) == 3, "the 1st, the 2nd and the 4th of 6"


@pytest.mark.parametrize("newer", [link_module, server_module], ids=["gateway", "worker"])
async def test_who_has_no_version_in_common_is_told_and_hears_no_hello(
    newer: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection_module, "_closed", Repeats())
    monkeypatch.setattr(newer, "SPOKEN", Versions(NEXT.newest, NEXT.newest + 1))
    theirs, ours = (f"versions {NEXT.newest}..{NEXT.newest + 1}", f"version {SPOKEN.newest}")
    if newer is link_module:
        theirs, ours = ours, theirs
    queues: list[asyncio.Queue[Message]] = [asyncio.Queue(), asyncio.Queue()]
    told = f"peer speaks {theirs}, this is {ours}: upgrade one version at a time"
    for _ in range(3):
        with pytest.raises(OtherVersionError, match=told):
            async with met(*queues):
                raise AssertionError("linked")
    assert all(queue.empty() for queue in queues)
    lines = [line for line in caplog.messages if "upgrade one version at a time" in line]
    assert len(lines) == 3, "of 3 dials, both ends: the 1st, the 2nd and the 4th"
