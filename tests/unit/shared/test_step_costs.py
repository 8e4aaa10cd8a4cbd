"""What a prompt costs, by the costs of a worker's steps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.message_parts.step_costs import StepCosts

COSTS = StepCosts(4e-3, 3e-5, 2e-8, 2e-5, 3e-10)


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=8))
def test_a_prompt_costs_the_same_however_it_is_cut_into_chunks(chunks: list[int]) -> None:
    ends = [sum(chunks[: at + 1]) for at in range(len(chunks))]
    parts_s = [COSTS.prompt_s(end, end - size) for end, size in zip(ends, chunks, strict=True)]
    assert sum(parts_s) == pytest.approx(COSTS.prompt_s(sum(chunks)))


def test_each_token_attends_to_itself_and_to_all_before_it() -> None:
    pairs = StepCosts(chunk_pair_s=1.0)
    assert pairs.prompt_s(4) == 1 + 2 + 3 + 4
    assert pairs.prompt_s(4, num_cached=2) == 3 + 4
    assert StepCosts(step_s=9.0, row_s=9.0, context_token_s=9.0).prompt_s(4) == 0.0
