"""What a grammar does not allow and what ends a request too early are never chosen."""

import hypothesis.strategies as st
import torch
from hypothesis import given, settings

from shared.engine.sampling.sample_row import SampleRow
from shared.engine.sampling.sampler import Sampler
from shared.engine.sampling.token_masks import mask_
from shared.protocol import Sampling

torch.set_num_threads(1)


def bitmask(token_ids: set[int], num_words: int) -> torch.Tensor:
    words = [0] * num_words
    for token_id in token_ids:
        words[token_id // 32] |= 1 << token_id % 32
    return torch.tensor(
        [word - 2**32 if word >= 2**31 else word for word in words], dtype=torch.int32
    )


def by_definition(
    vocab_size: int, allowed: set[int] | None, endings: set[int], *, early: bool
) -> set[int]:
    kept = set(range(vocab_size))
    if allowed is not None:
        kept &= allowed
    return (kept - endings or kept) if early else kept


cases = st.tuples(
    st.none() | st.sets(st.integers(0, 69), min_size=1, max_size=6),
    st.sets(st.integers(-1, 99), max_size=4),
    st.booleans(),
)


@settings(max_examples=200)
@given(batch=st.lists(cases, min_size=1, max_size=5), vocab_size=st.sampled_from([70, 96, 97, 130]))
def test_exactly_what_may_come_next_is_left(
    batch: list[tuple[set[int] | None, set[int], bool]], vocab_size: int
) -> None:
    rows = [
        SampleRow(
            Sampling(9, 0.0, min_tokens=2, stop_token_ids=tuple(endings)),
            5,
            0 if early else 2,
            allowed=None if allowed is None else bitmask(allowed, 3),
        )
        for allowed, endings, early in batch
    ]
    logits = torch.ones(len(batch), vocab_size)
    mask_(logits, rows)
    for values, (allowed, endings, early) in zip(logits, batch, strict=True):
        left = set(values.isfinite().nonzero().flatten().tolist())
        assert left == by_definition(vocab_size, allowed, endings, early=early)


def test_a_grammar_beats_a_bias() -> None:
    logits = torch.tensor([[0.0, 50.0, 1.0]])
    for temperature in (0.0, 1.0):
        row = SampleRow(Sampling(9, temperature), 5, 0, allowed=bitmask({0, 2}, 1))
        assert Sampler().sample(logits, [row]).wait()[0].token_id in (0, 2)
