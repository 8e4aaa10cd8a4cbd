"""The generations behind one HTTP answer: one, or a group of several.

For the owner each choice is a request of its own; only the record in Redis is one. Nothing of
a group is given out before every choice is accepted, so that a refusal of one refuses the whole
request with its own status; and a failure of one is the failure of all.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, Self

from services.gateway.answer.submit_order import SubmitOrder
from services.gateway.owner.generation import Delta, GenerateRequest, Generation
from shared.errors import AttemptError, BatonError
from shared.message_parts.prompt_logprobs import PromptLogprobs
from shared.protocol import FinishReason

SUBMITS_PER_TURN = 4
"""then the event loop has a turn"""


class ChoiceOwner(Protocol):
    """Takes choices."""

    def submit(self, request: GenerateRequest) -> Generation:
        """Own the request from now on; OverloadedError if there is no room."""

    async def close_record(self, rid: str) -> None:
        """No other choice of this HTTP request comes. Returns once its end is recorded, or late."""


class ChoiceGroup:
    """Iterate over what arrives, as (index, delta) pairs, until each choice was closed.

    Read it from one task. `cancel` on every way out."""

    def __init__(
        self,
        owner: ChoiceOwner,
        requests: Sequence[GenerateRequest],
        order: SubmitOrder,
        starting: asyncio.Lock | None = None,
    ) -> None:
        """`starting`: shared by all groups of a gateway."""
        self._starting = starting or asyncio.Lock()
        self._owner = owner
        self._requests = requests
        self._order = order
        self._news = asyncio.Event()
        self._is_waiting = False
        """the task that reads is idle: nothing it took is still on its way to the client"""
        self._start_s = asyncio.get_running_loop().time()
        self._generations: dict[int, Generation] = {}
        self._open = dict.fromkeys(range(len(requests)))
        """choices whose end was not seen yet"""
        self._unbegun: list[int] = []
        """submitted, without a token so far; followed while others wait for them"""
        self._all_accepted = False
        self._given_up = False

    async def start(self) -> Self:
        """Submit what may be submitted; OverloadedError, and nothing kept, if one is refused.

        Large groups begin one after the other: if they shared what room there is, each would be
        refused for the lack of the rest."""
        opening = self._order.opening()
        try:
            if len(opening) <= SUBMITS_PER_TURN:
                await self._submit_opening(opening)
            else:
                async with self._starting:
                    await self._submit_opening(opening)
        except BaseException:
            await self.cancel()
            raise
        return self

    async def _submit_opening(self, opening: Sequence[int]) -> None:
        for place, index in enumerate(opening):
            await _give_turn(place)
            self._submit_one(index, self._requests[index])

    @property
    def rids(self) -> tuple[str, ...]:
        """Of the choices, in order."""
        return tuple(request.rid for request in self._requests)

    @property
    def accepted(self) -> bool:
        """No choice of the request can be refused any more, as far as was seen."""
        return self._all_accepted

    def cached_tokens(self) -> int:
        """Prompt tokens that the first choice of each prompt found in a cache."""
        leaders = {self._order.leader(index) for index in self._generations}
        return sum(self._generations[leader].cached_tokens for leader in leaders)

    def prompt_logprobs(self, index: int) -> Sequence[PromptLogprobs]:
        """Of the prompt of a choice whose first delta has arrived, where they were asked for."""
        return self._generations[index].prompt_logprobs

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[tuple[int, Delta]]:
        """At least one delta; raises the first failure of any choice."""
        while self._open:
            if self._given_up:  # whoever reads is about to be cancelled, and there is no end to see
                await asyncio.Event().wait()
            if not self._all_accepted:
                await self._submit_due()
            if self._all_accepted and (arrived := self._take()):
                return arrived
            await self._wait()
        raise StopAsyncIteration

    def read_with(self, reader: Callable[[int, Delta], bool]) -> None:
        """While `__anext__` waits, call `reader` with what arrives, as (index, delta), and go on
        waiting unless it does not take it (False). All choices must have been accepted."""
        for index in self._open:
            self._generations[index].read_with(partial(self._read, reader, index))

    async def finish(self, index: int, reason: FinishReason, num_tokens: int) -> None:
        """The text side ends a choice; returns once that is recorded, or late."""
        await self._generations[index].finish(reason, num_tokens)

    def close(self, index: int) -> None:
        """This choice is complete: whatever may follow is not wanted."""
        self._open.pop(index, None)
        self._generations[index].read_with(None)

    def give_up(self) -> None:
        """Nobody wants the choices that are still open: the owner is told at once, and no other
        choice is submitted."""
        self._given_up = True
        for index in tuple(self._open):
            if index in self._generations:
                self._generations[index].read_with(None)
                self._generations[index].cancel()

    async def cancel(self) -> None:
        """Give up; safe to call twice. Returns once the request's end is recorded, or late."""
        self.give_up()
        await self._owner.close_record(self._requests[0].http_rid)

    async def _wait(self) -> None:
        self._news.clear()
        self._is_waiting = True
        try:
            await self._news.wait()
        finally:
            self._is_waiting = False

    def _read(self, reader: Callable[[int, Delta], bool], index: int, delta: Delta) -> bool:
        return self._is_waiting and reader(index, delta)

    def _follow(self, index: int, prompt_incarnation: str | None) -> None:
        """Submit a choice whose prompt that incarnation has computed."""
        request = self._requests[index]
        waited_s = asyncio.get_running_loop().time() - self._start_s
        left_s = max(0.0, request.timeout_s - waited_s)
        self._submit_one(
            index, replace(request, timeout_s=left_s, prefer_incarnation=prompt_incarnation)
        )

    def _submit_one(self, index: int, request: GenerateRequest) -> None:
        generation = self._owner.submit(request)
        generation.share_news(self._news)
        self._generations[index] = generation
        self._unbegun.append(index)

    async def _submit_due(self) -> None:
        """Submit those whose prompt is in a cache by now; note when all are accepted."""
        begun = [index for index in self._unbegun if self._generations[index].begun]
        self._unbegun = [index for index in self._unbegun if index not in begun]
        all_due = [due for index in begun for due in self._order.begun(index)]
        for place, due in enumerate(all_due):
            await _give_turn(place)
            if self._given_up:
                return
            self._follow(due, self._generations[self._order.leader(due)].prompt_incarnation)
        for generation in self._generations.values():
            self._check(generation)
        accepted = sum(generation.accepted for generation in self._generations.values())
        self._all_accepted = accepted == len(self._requests)

    def _check(self, generation: Generation) -> None:
        """Raise what the request fails with before anything was given out; a lone choice gives
        out its tokens first."""
        if generation.begun and len(self._requests) == 1:
            return
        if generation.failure is not None:
            raise generation.failure
        if generation.ended and not generation.begun:
            raise _ended_early()

    def _take(self) -> list[tuple[int, Delta]]:
        arrived = []
        for index in self._open:
            generation = self._generations[index]
            delta = generation.take()
            if delta is not None:
                arrived.append((index, delta))
            elif generation.ended:
                raise _ended_early()
        return arrived


async def _give_turn(num_submitted: int) -> None:
    """To the event loop, after every few choices."""
    if num_submitted and num_submitted % SUBMITS_PER_TURN == 0:
        await asyncio.sleep(0)


def _ended_early() -> BatonError:
    """A generation that just stops is a failure, never an answer cut short."""
    return AttemptError("the answer ended early", code="internal_error")
