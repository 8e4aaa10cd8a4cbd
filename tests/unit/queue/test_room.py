"""What a worker takes that it cannot begin at once: short ones by room, one long one by place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.queue.room import LongPlace, Room, taken_room

LIMIT = 100
PROMPTS = st.lists(st.tuples(st.integers(1, 300), st.booleans()), max_size=5)


def left(*prompts: int, early: bool = True) -> Room:
    """Where these have not begun."""
    return Room.whole(LIMIT).less((num_tokens, early) for num_tokens in prompts)


@pytest.mark.parametrize(
    ("waiting", "num_tokens", "takes"),
    [
        ((), 10**6, True),
        ((50,), 50, True),
        ((50, 50), 1, False),
        ((50, 50), 51, True),
        ((51,), 50, True),
        ((51,), 51, False),
        ((10**6,), 51, False),
        ((10**6, 50), 1, False),
    ],
)
def test_one_long_prompt_and_short_ones_by_room(
    waiting: tuple[int, ...], num_tokens: int, *, takes: bool
) -> None:
    """Of 100 tokens; a prompt of more than 50 is long."""
    assert left(*waiting).takes(num_tokens) is takes


def test_later_prompts_take_neither_room_nor_place_of_early_ones() -> None:
    room = left(60, 60, early=False)
    assert (room.tokens, room.early_tokens, room.long_place) == (0, LIMIT, LongPlace.EARLY)
    assert room.takes(10**6) and room.takes(50)
    assert not (room.takes(51, early=False) or room.takes(1, early=False))
    assert not left(60).takes(60, early=False)


def test_a_refusal_leaves_no_room_and_what_later_ones_find_full_may_have_some_for_early_ones() -> (
    None
):
    assert Room.whole(LIMIT).refused(early=True) == Room(LIMIT, 0, 0, LongPlace.NONE)
    assert Room.whole(LIMIT).refused(early=False) == Room(LIMIT, 0, LIMIT, LongPlace.EARLY)


def test_a_worker_of_an_earlier_release_takes_a_long_one_with_room_for_all_of_it() -> None:
    room = Room(LIMIT, 60, -1, LongPlace.UNTOLD).less([])
    assert room.takes(60) and room.takes(60, early=False) and not room.takes(61)
    assert room.less([(10, True)]).tokens == 50
    assert room.less([(80, True)]).long_place == LongPlace.UNTOLD


@given(waiting=PROMPTS, num_tokens=st.integers(1, 300), early=st.booleans())
def test_nothing_is_refused_that_has_room_for_all_of_it(
    waiting: list[tuple[int, bool]], num_tokens: int, *, early: bool
) -> None:
    """So nothing that was taken before long prompts had a place of their own."""
    counted = [taken_room(num, LIMIT) for num, each in waiting if each or not early]
    room = Room.whole(LIMIT).less(waiting)
    if not counted or sum(counted) + num_tokens <= LIMIT:
        assert room.takes(num_tokens, early=early)
