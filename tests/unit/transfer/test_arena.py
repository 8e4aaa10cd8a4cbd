"""Room in the arena: never given twice, in the order of the asking, and none is lost."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.transfer.blocks.arena import Arena

pytestmark = pytest.mark.anyio
SIZE = 10


def arena() -> Arena:
    return Arena(memoryview(bytearray(SIZE)))


@settings(deadline=None)
@given(sizes=st.lists(st.integers(1, SIZE), min_size=1, max_size=12), draw=st.data())
def test_room_is_nobody_else_s_and_is_given_in_order(sizes: list[int], draw: st.DataObject) -> None:
    async def live() -> None:
        whole = arena()
        asked = [asyncio.ensure_future(whole.take(size)) for size in sizes]
        held: list[tuple[int, slice]] = []
        given_to: list[int] = []
        while len(given_to) < len(sizes) or held:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            for index, taking in enumerate(asked):
                if taking.done() and index not in given_to:
                    given_to.append(index)
                    held.append((index, taking.result()))
            assert given_to == sorted(given_to)
            places = [place for _, room in held for place in range(room.start, room.stop)]
            assert len(places) == len(set(places)) and set(places) <= set(range(SIZE))
            assert all(room.stop - room.start == sizes[index] for index, room in held)
            assert held, "an empty arena has room for whoever is next"
            _, room = held.pop(draw.draw(st.integers(0, len(held) - 1)))
            whole.give_back(room)
        assert await whole.take(SIZE) == slice(0, SIZE)

    asyncio.run(live())


async def test_more_than_there_is_and_nothing_are_refused() -> None:
    for size in (0, SIZE + 1):
        with pytest.raises(ValueError, match="bytes of an arena of 10"):
            await arena().take(size)


async def test_whoever_gives_up_waiting_keeps_nobody_waiting() -> None:
    whole = arena()
    room = await whole.take(6)
    large, small = (asyncio.create_task(whole.take(size)) for size in (5, 4))
    await asyncio.sleep(0)
    assert not small.done()
    large.cancel()
    assert await small == slice(6, 10)
    whole.give_back(room)
    assert await whole.take(6) == slice(0, 6)


async def test_room_that_came_with_the_cancellation_is_not_lost() -> None:
    whole = arena()
    room = await whole.take(SIZE)
    taking = asyncio.create_task(whole.take(SIZE))
    await asyncio.sleep(0)
    whole.give_back(room)
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    async with asyncio.timeout(1):
        assert await whole.take(SIZE) == slice(0, SIZE)
