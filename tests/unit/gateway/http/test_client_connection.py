"""What is told at once when a client has left."""

import asyncio

import pytest
from starlette.types import Message

from services.gateway.http.client_connection import ClientConnection, ClientGoneError

pytestmark = pytest.mark.anyio


class Client:
    """Has sent its request, and may leave."""

    def __init__(self) -> None:
        self.left = asyncio.Event()

    async def receive(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}


async def send(message: Message) -> None:
    raise AssertionError("nothing is sent")


async def test_of_hundreds_that_leave_at_once_all_are_told_before_any_work_is_cleaned_up() -> None:
    told: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            told.append("cleaned up")

    clients = [Client() for _ in range(300)]
    connections = [
        ClientConnection(client.receive, send, 60.0, on_gone=lambda: told.append("gone"))
        for client in clients
    ]
    running = [asyncio.ensure_future(connection.run(work())) for connection in connections]
    await asyncio.sleep(0.01)
    for client in clients:
        client.left.set()
    ends = await asyncio.gather(*running, return_exceptions=True)
    assert told == ["gone"] * 300 + ["cleaned up"] * 300
    assert all(isinstance(end, ClientGoneError) for end in ends)


async def test_nobody_has_left_where_the_work_ends_first() -> None:
    told: list[str] = []
    client = Client()
    connection = ClientConnection(client.receive, send, 60.0, on_gone=lambda: told.append("gone"))
    await connection.run(asyncio.sleep(0))
    client.left.set()
    await asyncio.sleep(0.01)
    assert told == []
