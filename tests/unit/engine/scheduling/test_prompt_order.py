"""Prompts: short ones first, and long ones in time."""

from hypothesis import given
from hypothesis import strategies as st

from shared.engine.scheduling.prompt_order import PATIENCE, PromptOrder, PromptReach
from shared.engine.scheduling.sequence import Sequence
from shared.protocol import Sampling
from tests.unit.engine.fake_runner import make_prompt, make_spec

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


def _arrived(order: PromptOrder, lengths: list[int]) -> list[Sequence]:
    sequences = []
    for arrival, length in enumerate(lengths):
        spec = make_spec(str(arrival), make_prompt(length), Sampling(max_tokens=1), "full")
        sequences.append(sequence := Sequence(spec, arrival))
        sequence.turn = order.arrive(length)
    return sequences


def _num_before(order: PromptOrder, waiting: list[Sequence], writing: list[Sequence]) -> int:
    """By its definition, prompt by prompt."""
    place = min(map(order.place, waiting))
    return sum(len(each.token_ids) for each in writing if order.place(each) < place)


@given(lengths=st.lists(st.integers(1, 60), min_size=2, max_size=30), draws=st.data())
def test_the_reach_of_a_step_is_what_goes_before_all_that_wait(
    lengths: list[int], draws: st.DataObject
) -> None:
    order = PromptOrder(STEP)
    waiting = _arrived(order, lengths)
    split = draws.draw(st.integers(0, len(lengths) - 1))
    writing, waiting = waiting[:split], waiting[split:]
    reach = PromptReach(order, waiting, writing)
    while True:
        assert reach.num_before() == _num_before(order, waiting, writing)
        if len(waiting) == 1:
            return
        admitted = waiting.pop(draws.draw(st.integers(0, len(waiting) - 1)))
        reach.admit(admitted)
        writing.append(admitted)
