"""The load of a campaign: N streams at every moment, over all gateways.

A request that is refused comes back when it was told to. One whose gateway is gone is repeated at
another, with the same Idempotency-Key, until it is answered: by that key it is one request.
"""

import asyncio
import itertools
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from services.cli.chaos.asks import Ask
from services.cli.chaos.attempt import Attempt, Connection

LIMIT_S = 90.0
"""of one attempt; one that takes longer hangs"""
LEAST_WAIT_S = 0.25
PATIENCE_S = 120.0
"""for a request with all its attempts"""


AnyAsk = TypeVar("AnyAsk")


async def keep_open(
    send: Callable[[AnyAsk], Awaitable[object]],
    asks: Iterable[AnyAsk],
    num_streams: int,
    going: Callable[[], bool] = lambda: True,
) -> None:
    """A closed loop: `num_streams` at every moment, until the asks or `going` end."""
    left = iter(asks)

    async def slot() -> None:
        for ask in left:
            if not going():
                return
            await send(ask)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(num_streams):
            tasks.create_task(slot())


@dataclass
class Asked:
    """What became of one request; the last attempt decides."""

    ask: Ask
    key: str
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def last(self) -> Attempt:
        return self.attempts[-1]


class Load:
    """Sends requests and keeps what became of them."""

    def __init__(self, urls: Sequence[str], model: str, numbers: random.Random) -> None:
        """`urls`: of the gateways."""
        self.asked: list[Asked] = []
        self.ended: list[Attempt] = []
        self.running: dict[int, Connection] = {}
        self._urls = urls
        self.model = model
        self._numbers = numbers
        self._places = itertools.count()

    async def send(self, ask: Ask) -> Asked:
        """To the end of its last attempt."""
        asked = Asked(ask, str(uuid.uuid4()))
        self.asked.append(asked)
        end_s = time.monotonic() + PATIENCE_S
        gateway = self._numbers.randrange(len(self._urls))
        while True:
            attempt = await self._attempt(asked, gateway)
            over = attempt.whole or attempt.left or attempt.ended_before or attempt.failed
            if over or time.monotonic() > end_s:
                break
            if attempt.broken:
                gateway = (gateway + 1) % len(self._urls)
            await asyncio.sleep(max(LEAST_WAIT_S, min(attempt.retry_after_s, 1.0)))
        return asked

    async def _attempt(self, asked: Asked, gateway: int) -> Attempt:
        attempt = Attempt(gateway, time.monotonic())
        asked.attempts.append(attempt)
        connection = Connection(attempt)
        place = next(self._places)
        self.running[place] = connection
        try:
            body = asked.ask.body(self.model)
            await connection.exchange(self._urls[gateway], body, asked.key, LIMIT_S)
        finally:
            del self.running[place]
            self.ended.append(attempt)
        return attempt
