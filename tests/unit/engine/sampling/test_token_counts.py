"""Counts kept token by token equal counts rebuilt from the tokens at any point."""

import hypothesis.strategies as st
from hypothesis import given, settings

from shared.engine.sampling.token_counts import TokenCounts, counts_for
from shared.protocol import Sampling

TOKENS = st.lists(st.integers(0, 6), max_size=20)


def as_dict(counts: TokenCounts | None) -> dict[int, int]:
    assert counts is not None
    assert len(set(counts.token_ids)) == len(counts.token_ids)
    return dict(zip(counts.token_ids, counts.num_in_output, strict=True))


@settings(max_examples=200)
@given(prompt=TOKENS, output=TOKENS)
def test_each_token_is_counted_once_per_time_in_the_output(
    prompt: list[int], output: list[int]
) -> None:
    counts = TokenCounts(prompt, [])
    for length, token_id in enumerate(output, 1):
        counts.append(token_id)
        assert as_dict(counts) == as_dict(TokenCounts(prompt, output[:length]))
    assert as_dict(counts) == {
        token_id: output.count(token_id) for token_id in set(prompt) | set(output)
    }


def test_only_the_repetition_penalty_looks_at_the_prompt() -> None:
    tokens = (3, 3, 4, 5, 4)
    assert as_dict(counts_for(Sampling(9, repetition_penalty=1.1), tokens, 3)) == {3: 0, 4: 1, 5: 1}
    for sampling in (Sampling(9, presence_penalty=1.0), Sampling(9, frequency_penalty=-1.0)):
        assert as_dict(counts_for(sampling, tokens, 3)) == {5: 1, 4: 1}
    assert counts_for(Sampling(9, logit_bias=((1, 2.0),), min_p=0.5), tokens, 3) is None
