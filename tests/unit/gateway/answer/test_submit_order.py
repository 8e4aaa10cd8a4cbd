"""Which choices of a group go to the door when: each once, and never too many of a prompt."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from services.gateway.answer.submit_order import PromptSharing, SubmitOrder

BLOCK = 16
WAITING = 512


def order_of(lengths: list[int], n: int) -> SubmitOrder:
    return SubmitOrder(lengths, n, PromptSharing(min_tokens=BLOCK, step_tokens=WAITING))


def test_the_first_goes_ahead_and_the_others_follow_its_first_token() -> None:
    order = order_of([40], 4)
    assert order.opening() == [0]
    assert order.begun(0) == [1, 2, 3]
    assert order.begun(1) == []


def test_a_prompt_without_a_full_block_shares_nothing() -> None:
    assert order_of([15], 4).opening() == [0, 1, 2, 3]
    assert order_of([15, 16, 3], 2).opening() == [0, 1, 2, 4, 5]


def test_of_a_long_prompt_one_choice_waits_at_a_time() -> None:
    order = order_of([WAITING + 1], 4)
    assert order.opening() == [0]
    assert [order.begun(at) for at in range(4)] == [[1], [2], [3], []]


def test_one_choice_of_each_prompt_waits_for_nobody() -> None:
    assert order_of([40, 5, 1000], 1).opening() == [0, 1, 2]


def test_the_leader_is_the_first_choice_of_the_same_prompt() -> None:
    order = order_of([40, 40], 3)
    assert [order.leader(at) for at in range(6)] == [0, 0, 0, 3, 3, 3]


@settings(max_examples=200)
@given(
    lengths=st.lists(st.integers(1, 700), min_size=1, max_size=6),
    n=st.integers(1, 8),
    pick=st.randoms(use_true_random=False),
)
def test_every_choice_is_submitted_once_whatever_begins_first(
    lengths: list[int], n: int, pick: random.Random
) -> None:
    order = order_of(lengths, n)
    waiting = list(order.opening())
    submitted = list(waiting)
    while waiting:
        index = pick.choice(waiting)
        waiting.remove(index)
        due = order.begun(index)
        for follower in due:
            assert order.leader(follower) in submitted
        waiting += due
        submitted += due
        for prompt, length in enumerate(lengths):
            mine = [at for at in waiting if at // n == prompt]
            shared = length >= BLOCK and n > 1
            assert not shared or len(mine) <= max(1, WAITING // length)
    assert sorted(submitted) == list(range(len(lengths) * n))
