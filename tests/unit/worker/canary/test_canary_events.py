"""What a worker's node hands on of the engine's events while a canary is under way."""

import asyncio
from typing import Any

import pytest

from shared.worker.canary.reservation import Reservation
from shared.worker.channel import Event, Reserved, Scheduled
from shared.worker.node import Node
from tests.unit.worker.canary.test_canary_rounds import ANOTHER, OURS, WORK
from tests.unit.worker.fake_parts import FakeEngine, Journal, settle

pytestmark = pytest.mark.anyio


class Heard:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)


def node_with(canary: Reservation | None) -> tuple[Node, Heard]:
    """Of its parts only those that events pass."""
    node: Any = Node.__new__(Node)
    node._canary, node._inbox = canary, Heard()
    return node, node._inbox


async def test_the_service_does_not_hear_of_the_canarys_blocks() -> None:
    """It would abort them at once, and others would get them while they are pulled into."""
    journal = Journal()
    reservation = Reservation(FakeEngine(journal), 4)
    node, heard = node_with(reservation)

    async def reserve() -> Reserved:
        async with reservation.of(WORK) as reserved:
            return reserved

    reserving = asyncio.create_task(reserve())
    await settle(lambda: journal.entries)
    node._on_event(Scheduled(1, reserved=(OURS, ANOTHER)))
    assert heard.events == [Scheduled(1, reserved=(ANOTHER,))]
    assert await reserving == OURS


def test_where_nobody_asks_it_hears_everything() -> None:
    node, heard = node_with(None)
    event = Scheduled(1, reserved=(Reserved(WORK.attempt, (3,), 0),))
    node._on_event(event)
    assert heard.events == [event]
