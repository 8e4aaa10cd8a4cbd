"""Blocks of this worker's own pool that it pulls from itself into.

They are reserved as those of any prompt whose KV arrives, under an attempt that nobody adopts: the
engine never decodes from them, and takes them back once nothing is pulled any more.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from shared.engine.scheduling.sequence import SequenceSpec
from shared.errors import BatonError
from shared.protocol import Attempt, Work
from shared.worker.canary.asked_worker import ROOM_S, NoPartError
from shared.worker.channel import Abort, Event, Refused, Reserve, Reserved, Scheduled
from shared.worker.engine_sender import EngineSender


class Reservation:
    """One at a time."""

    def __init__(self, engine: EngineSender, block_size: int) -> None:
        self._engine = engine
        self._block_size = block_size
        self._attempt: Attempt | None = None
        self._answer: asyncio.Future[Reserved]

    @asynccontextmanager
    async def of(self, work: Work) -> AsyncIterator[Reserved]:
        """The blocks of its prompt. BatonError if the engine refuses them, NoPartError if it has
        none to spare for a while."""
        self._attempt = work.attempt
        self._answer = asyncio.get_running_loop().create_future()
        self._engine.send(Reserve(SequenceSpec.of(work, self._block_size, "decode")))
        try:
            try:
                async with asyncio.timeout(ROOM_S):
                    reserved = await self._answer
            except TimeoutError:
                raise NoPartError from None
            yield reserved
        finally:
            self._attempt = None
            self._engine.send(Abort(work.attempt))

    def take(self, event: Event) -> Event:
        """What is left of an event for others to hear."""
        match event:
            case Scheduled(reserved=reserved):
                others = tuple(each for each in reserved if not self._is_answer(each))
                return event if len(others) == len(reserved) else replace(event, reserved=others)
            case Refused(attempt, text) if attempt == self._attempt:
                if not self._answer.done():
                    self._answer.set_exception(BatonError(f"no block to pull into: {text}"))
        return event

    def _is_answer(self, reserved: Reserved) -> bool:
        if reserved.attempt != self._attempt:
            return False
        if not self._answer.done():
            self._answer.set_result(reserved)
        return True
