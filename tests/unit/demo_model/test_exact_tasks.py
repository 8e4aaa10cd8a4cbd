"""The three checkable tasks: right answers, and no held-out item ever in training."""

import re
from random import Random

import pytest

from shared.demo_model.chat import Exchange
from shared.demo_model.recipe.documents import documents
from shared.demo_model.recipe.exact_tasks import (
    EVALUATED,
    copy_exchange,
    copy_key,
    draw,
    held_out_prompts,
    is_held_out,
    sort_exchange,
    sort_key,
    sum_exchange,
    sum_key,
)
from shared.demo_model.recipe.wordings import (
    COPY_FORMS,
    NUMBER_SORT_FORMS,
    SUM_FORMS,
    UNSEEN_FORMS,
    WORD_SORT_FORMS,
)

SUM_IN_TEXT = re.compile(r"(?<![\d-])(\d{2}) ?\+ ?(\d{2})(?!\d)")


def _training_text(seed: int, num: int) -> list[str]:
    return ["".join(segment.text for segment in found) for found in documents(seed, num)]


def test_a_fifth_of_all_two_digit_sums_is_held_out() -> None:
    keys = [sum_key(a, b) for a in range(10, 100) for b in range(a, 100)]
    assert 0.15 < sum(map(is_held_out, keys)) / len(keys) < 0.25


def test_both_orders_share_one_fate() -> None:
    assert sum_key(47, 38) == sum_key(38, 47)
    assert sort_key(["9", "3"]) == sort_key(["3", "9"])


def test_training_documents_hold_no_held_out_sum() -> None:
    found = [match for text in _training_text(3, 4000) for match in SUM_IN_TEXT.findall(text)]
    assert len(found) > 200
    assert not [pair for pair in found if is_held_out(sum_key(int(pair[0]), int(pair[1])))]


def test_the_search_for_held_out_sums_can_fail() -> None:
    asked = [messages[0]["content"] for messages, _ in held_out_prompts("sum", 200)]
    pairs = [pair for text in asked for pair in SUM_IN_TEXT.findall(text)]
    assert len(pairs) > 50
    assert all(is_held_out(sum_key(int(a), int(b))) for a, b in pairs)


def test_draw_keeps_to_its_side_of_the_split() -> None:
    rng = Random(5)  # noqa: S311
    for _ in range(300):
        assert not is_held_out(copy_key(draw(copy_exchange, rng, held_out=False).answer))
        assert is_held_out(copy_key(draw(copy_exchange, rng, held_out=True).answer))


def test_sums_are_right() -> None:
    rng = Random(6)  # noqa: S311
    for _ in range(300):
        _, exchange = sum_exchange(rng)
        numbers = [int(number) for number in re.findall(r"\d+", exchange.question)]
        assert sum(numbers) == int(exchange.answer)


def test_sorted_lists_hold_the_same_numbers_in_order() -> None:
    rng = Random(8)  # noqa: S311
    for _ in range(300):
        _, exchange = sort_exchange(rng)
        asked = [int(number) for number in re.findall(r"\d+", exchange.question)]
        given = [int(number) for number in re.findall(r"\d+", exchange.answer)]
        assert sorted(asked) == sorted(given)
        assert given in (sorted(given), sorted(given, reverse=True))


def test_copies_stand_in_their_question() -> None:
    rng = Random(9)  # noqa: S311
    for _ in range(300):
        _, exchange = copy_exchange(rng)
        assert exchange.answer in exchange.question


def test_unseen_wordings_are_not_trained() -> None:
    trained = {*COPY_FORMS, *NUMBER_SORT_FORMS, *WORD_SORT_FORMS, *SUM_FORMS}
    unseen = {form for forms in UNSEEN_FORMS.values() for form in forms}
    assert not {form.lower() for form in trained} & {form.lower() for form in unseen}


@pytest.mark.parametrize("task", sorted(EVALUATED))
def test_held_out_prompts_repeat_themselves(task: str) -> None:
    first = held_out_prompts(task, 5)
    assert first == held_out_prompts(task, 5)
    assert first != held_out_prompts(task, 5, seed=8)
    assert all(messages[-1]["role"] == "user" and expected for messages, expected in first)


def test_a_wrong_side_would_be_noticed() -> None:
    """A generator that ignores the split yields held-out items within a few draws."""
    rng = Random(10)  # noqa: S311
    exchanges: list[tuple[str, Exchange]] = [sum_exchange(rng) for _ in range(100)]
    assert any(is_held_out(key) for key, _ in exchanges)
