"""The byte budget: what requests may hold together, and which gives way.

The failure guarded (B12): bodies that never end fill the memory, or keep every other body out.
"""

import asyncio

import pytest

from services.gateway.http import byte_budget
from services.gateway.http.byte_budget import ByteBudget, ByteShare
from shared.errors import OverloadedError

pytestmark = pytest.mark.anyio


async def arrive(share: ByteShare, num_bytes: int, go_on: asyncio.Event) -> None:
    """A body of which so much comes, and then nothing until the event."""
    try:
        async with share.arriving():
            share.grow(num_bytes)
            await go_on.wait()
    except OverloadedError:
        share.release()
        raise


async def test_what_does_not_fit_is_refused_until_something_goes() -> None:
    budget = ByteBudget(100)
    first, second = budget.share(), budget.share()
    first.grow(60)
    with pytest.raises(OverloadedError) as refused:
        second.grow(41)
    assert (refused.value.status, budget.used_bytes) == (503, 60)
    second.grow(40)
    first.release()
    first.release()
    second.resize(100)
    assert budget.used_bytes == 100
    with pytest.raises(OverloadedError):
        second.resize(101)
    assert budget.used_bytes == 0


async def test_the_body_that_is_still_for_longest_gives_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not one that moves, and not what was read completely."""
    monkeypatch.setattr(byte_budget, "STILL_S", 0.02)
    budget, go_on = ByteBudget(100), asyncio.Event()
    shares = [budget.share() for _ in range(3)]
    complete = budget.share()
    complete.grow(10)
    bodies = [asyncio.ensure_future(arrive(share, 30, go_on)) for share in shares]
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError):
        budget.share().grow(30)  # nobody is still yet
    await asyncio.sleep(0.03)
    shares[0].grow(0)  # it moves again: the second is the stillest now
    late = budget.share()
    late.grow(30)
    with pytest.raises(OverloadedError):
        await bodies[1]
    go_on.set()
    await asyncio.gather(bodies[0], bodies[2])
    assert budget.used_bytes == 10 + 30 + 30 + 30
