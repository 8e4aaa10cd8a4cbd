"""Prompts: short ones first, and long ones in time."""

from shared.engine.scheduling.prompt_order import PATIENCE, PromptOrder

STEP = 8


def test_a_bucket_is_for_prompts_of_twice_as_many_steps() -> None:
    order = PromptOrder(STEP)
    lengths = (1, 8, 9, 16, 17, 32, 33, 10**9)
    assert [order.arrive(length).bucket for length in lengths] == [0, 0, 1, 1, 2, 2, 3, 15]


def test_a_long_prompt_is_overdue_by_what_shorter_ones_have() -> None:
    order = PromptOrder(STEP)
    first = order.arrive(2 * STEP)
    for _ in range(PATIENCE):
        assert order.bucket_of(first) == first.bucket == 1
        assert order.bucket_of(order.arrive(STEP)) == 0
    assert order.bucket_of(first) == 0, "as many tokens as its whole steps, four times"


def test_prompts_as_long_make_none_overdue() -> None:
    order = PromptOrder(STEP)
    first = order.arrive(100)
    for _ in range(100):
        order.arrive(100)
    assert order.bucket_of(first) == first.bucket > 0
