"""The generations of one answer: what is given out when, and whose failure is whose."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from services.gateway.answer.choice_group import ChoiceGroup
from services.gateway.answer.submit_order import PromptSharing, SubmitOrder
from services.gateway.owner.generation import Delta, GenerateRequest, Generation
from shared.errors import AttemptError, BatonError, OverloadedError
from shared.protocol import FinishReason, Sampling

pytestmark = pytest.mark.anyio
FAILURE = AttemptError("gone", code="attempts_exhausted")
FEW = 5
"""choices that one turn may submit"""
FULL = OverloadedError("full", retry_after_s=1.0)


class Owner:
    """Accepts requests and does nothing with them by itself."""

    def __init__(self, num_taken: int = 99) -> None:
        self.num_taken = num_taken
        self.requests: list[GenerateRequest] = []
        self.generations: list[Generation] = []
        self.cancelled: list[str] = []
        self.closed: list[str] = []

    def submit(self, request: GenerateRequest) -> Generation:
        if len(self.requests) == self.num_taken:
            raise FULL
        self.requests.append(request)
        self.generations.append(Generation(request.rid, self))
        return self.generations[-1]

    async def finish(self, rid: str, reason: FinishReason, num_tokens: int) -> None:
        raise AssertionError("nothing stops here")

    def cancel(self, rid: str, num_tokens: int) -> None:
        self.cancelled.append(rid)

    async def close_record(self, rid: str) -> None:
        self.closed.append(rid)


def group_of(
    owner: Owner, num_choices: int, length: int = 40, starting: asyncio.Lock | None = None
) -> ChoiceGroup:
    order = SubmitOrder([length], num_choices, PromptSharing(min_tokens=16, step_tokens=512))
    requests = [
        GenerateRequest(
            rid=f"r{at}",
            tenant="t",
            endpoint="text",
            prompt_ids=tuple(range(length)),
            sampling=Sampling(max_tokens=9),
            timeout_s=60.0,
            traceparent=None,
            received_ns=0,
            choice=at,
        )
        for at in range(num_choices)
    ]
    return ChoiceGroup(owner, requests, order, starting)


def tokens(*ids: int, reason: FinishReason | None = None) -> Delta:
    return Delta(ids, (), reason)


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def asked(group: ChoiceGroup) -> "asyncio.Future[list[tuple[int, Delta]]]":
    return asyncio.ensure_future(group.__anext__())


async def test_of_large_groups_as_many_are_accepted_as_have_room() -> None:
    """Not a part of each, and then none."""
    owner, starting = Owner(num_taken=90), asyncio.Lock()
    starts = [group_of(owner, 40, 4, starting).start() for _ in range(4)]
    results = await asyncio.gather(*starts, return_exceptions=True)
    assert [isinstance(result, ChoiceGroup) for result in results] == [True, True, False, False]


@pytest.mark.parametrize("length", [8, 40], ids=["at once", "once their prompt is computed"])
async def test_others_have_a_turn_after_every_few_choices(length: int) -> None:
    """A hundred choices take the event loop as long as many tokens of others."""
    owner = Owner()
    numbers = [0]

    async def look() -> None:
        while len(owner.requests) < 90:
            numbers.append(len(owner.requests))
            await asyncio.sleep(0)

    looking = asyncio.create_task(look())
    group = await group_of(owner, 90, length).start()
    owner.generations[0].put(tokens(1))
    arriving = asked(group)
    for _ in range(90):
        for generation in owner.generations[1:]:
            generation.put(tokens(1))
        await turn()
    await looking
    numbers.append(len(owner.requests))
    assert max(after - before for before, after in pairwise(numbers)) <= FEW
    arriving.cancel()


async def test_nothing_is_given_out_before_every_choice_is_accepted() -> None:
    owner = Owner()
    group = await group_of(owner, 3).start()
    arriving = asked(group)
    owner.generations[0].prompt_incarnation = "p0.1"
    owner.generations[0].put(tokens(1))
    await turn()
    assert [request.prefer_incarnation for request in owner.requests] == [None, "p0.1", "p0.1"]
    owner.generations[1].accept()
    await turn()
    assert not arriving.done()
    owner.generations[2].accept()
    assert await arriving == [(0, tokens(1))]
    owner.generations[2].put(tokens(3))
    owner.generations[1].put(tokens(2))
    assert await group.__anext__() == [(1, tokens(2)), (2, tokens(3))]


async def test_a_closed_choice_says_nothing_more_and_the_last_ends_the_group() -> None:
    owner = Owner()
    group = await group_of(owner, 2, length=5).start()
    for generation in owner.generations:
        generation.put(tokens(1))
    assert len(await group.__anext__()) == 2
    group.close(0)
    owner.generations[0].put(tokens(9))
    owner.generations[1].put(tokens(2, reason="length"))
    owner.generations[1].end()
    assert await group.__anext__() == [(1, tokens(2, reason="length"))]
    group.close(1)
    with pytest.raises(StopAsyncIteration):
        await group.__anext__()
    await group.cancel()
    assert owner.cancelled == []
    assert owner.closed == ["r0"], "the record of the request, by the id of its first choice here"


async def test_cancel_tells_the_choices_that_are_open() -> None:
    owner = Owner()
    group = await group_of(owner, 3, length=5).start()
    group.close(1)
    await group.cancel()
    assert owner.cancelled == ["r0", "r2"]
    assert owner.closed == ["r0"]


async def test_giving_up_tells_the_owner_before_anything_is_awaited() -> None:
    owner = Owner()
    group = await group_of(owner, 2, length=5).start()
    group.give_up()
    assert owner.cancelled == ["r0", "r1"]
    assert owner.closed == [], "the record is closed by whoever can wait for it"


async def test_no_choice_follows_once_the_client_has_left() -> None:
    owner = Owner()
    group = await group_of(owner, 3).start()
    reading = asyncio.ensure_future(group.__anext__())
    await asyncio.sleep(0)
    num_before = len(owner.requests)
    owner.generations[0].put(tokens(1))
    owner.generations[0].end()
    group.give_up()
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(owner.requests) == num_before < 3
    assert not reading.done(), "it sees no end of an answer that nobody wants"
    reading.cancel()


@pytest.mark.parametrize("num_taken", [0, 2])
async def test_a_refused_choice_takes_the_others_back(num_taken: int) -> None:
    owner = Owner(num_taken)
    with pytest.raises(OverloadedError):
        await group_of(owner, 3, length=5).start()
    assert owner.cancelled == [request.rid for request in owner.requests]
    assert len(owner.requests) == num_taken
    assert owner.closed == ["r0"]


async def test_a_refused_follower_fails_the_group_before_anything_is_given_out() -> None:
    owner = Owner(num_taken=2)
    group = await group_of(owner, 3).start()
    owner.generations[0].put(tokens(1))
    with pytest.raises(OverloadedError):
        await group.__anext__()
    await group.cancel()
    assert owner.cancelled == ["r0", "r1"]


def fail(generation: Generation) -> None:
    generation.fail(FAILURE)


def end(generation: Generation) -> None:
    generation.end()


@pytest.mark.parametrize("how", [fail, end])
@pytest.mark.parametrize("begun", [False, True])
async def test_the_failure_of_one_is_the_failure_of_all(how: Any, begun: bool) -> None:
    owner = Owner()
    group = await group_of(owner, 2, length=5).start()
    owner.generations[0].put(tokens(1))
    if begun:
        owner.generations[1].put(tokens(2))
        assert len(await group.__anext__()) == 2
    how(owner.generations[1])
    with pytest.raises(BatonError):
        await group.__anext__()


async def test_a_lone_choice_gives_out_its_tokens_before_its_failure() -> None:
    owner = Owner()
    group = await group_of(owner, 1).start()
    owner.generations[0].put(tokens(1))
    owner.generations[0].fail(FAILURE)
    assert await group.__anext__() == [(0, tokens(1))]
    with pytest.raises(AttemptError):
        await group.__anext__()


async def test_followers_get_what_is_left_of_the_time() -> None:
    owner = Owner()
    group = await group_of(owner, 2).start()
    arriving = asked(group)
    await asyncio.sleep(0.02)
    owner.generations[0].put(tokens(1))
    await turn()
    assert 59.0 < owner.requests[1].timeout_s <= 59.98
    arriving.cancel()


class AtOnce:
    """Takes what may be read at once, in so far as it is willing to."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, Delta]] = []
        self.willing = True

    def read(self, index: int, delta: Delta) -> bool:
        if self.willing:
            self.seen.append((index, delta))
        return self.willing


async def test_what_is_read_at_once_does_not_wake_the_task() -> None:
    owner, at_once = Owner(), AtOnce()
    group = await group_of(owner, 2, length=5).start()
    for generation in owner.generations:
        generation.put(tokens(1))
    assert len(await group.__anext__()) == 2
    group.read_with(at_once.read)
    arriving = asked(group)
    await turn()
    owner.generations[1].put(tokens(2))
    owner.generations[0].put(tokens(3))
    await turn()
    assert at_once.seen == [(1, tokens(2)), (0, tokens(3))]
    assert not arriving.done()
    assert [generation.num_yielded_tokens for generation in owner.generations] == [2, 2]
    owner.generations[0].fail(FAILURE)
    with pytest.raises(AttemptError):
        await arriving


async def test_nothing_overtakes_what_the_task_has_or_must_see() -> None:
    owner, at_once = Owner(), AtOnce()
    group = await group_of(owner, 1).start()
    owner.generations[0].put(tokens(1))
    assert await group.__anext__() == [(0, tokens(1))]
    group.read_with(at_once.read)
    owner.generations[0].put(tokens(2))
    assert at_once.seen == [], "the task may still be writing token 1"
    assert await group.__anext__() == [(0, tokens(2))]
    arriving = asked(group)
    await turn()
    at_once.willing = False
    owner.generations[0].put(tokens(3))
    at_once.willing = True
    owner.generations[0].put(tokens(4))
    assert await arriving == [(0, tokens(3, 4))]
    assert at_once.seen == []


async def test_a_closed_or_cancelled_choice_is_not_read_at_once() -> None:
    owner, at_once = Owner(), AtOnce()
    group = await group_of(owner, 2, length=5).start()
    for generation in owner.generations:
        generation.put(tokens(1))
    assert len(await group.__anext__()) == 2
    group.read_with(at_once.read)
    group.close(0)
    arriving = asked(group)
    await turn()
    owner.generations[0].put(tokens(2))
    await group.cancel()
    owner.generations[1].put(tokens(2))
    assert at_once.seen == []
    arriving.cancel()
