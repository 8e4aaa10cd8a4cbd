"""logit_bias and the penalties against a plain reference, bit for bit, whatever shares a batch.

The failures guarded: a wrong order or formula, prompt tokens that count as output, a token that
is changed twice, a row that changes another's logits.
"""

import random
from typing import NamedTuple

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from shared.engine.sampling.penalties import add_bias_, penalise_
from shared.engine.sampling.sample_row import SampleRow
from shared.engine.sampling.sampler import Sampler
from shared.protocol import Sampling
from tests.unit.engine.sampling.plain_sampling import plain_logits, row_of, without_penalties

torch.set_num_threads(1)

VOCAB_SIZE = 12
TOKEN_IDS = st.integers(0, VOCAB_SIZE - 1)


class History(NamedTuple):
    """One sequence and the logits of its next token."""

    sampling: Sampling
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    logits: torch.Tensor

    @property
    def row(self) -> SampleRow:
        return row_of(self.sampling, self.token_ids, self.num_prompt_tokens)

    def by_definition(self) -> torch.Tensor:
        return plain_logits(self.logits, self.sampling, self.token_ids, self.num_prompt_tokens)


samplings = st.builds(
    Sampling,
    max_tokens=st.just(99),
    temperature=st.sampled_from([0.0, 0.8]),
    seed=st.integers(0, 3),
    presence_penalty=st.sampled_from([0.0, 0.0, 2.0, -0.7]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.3, -2.0]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3, 0.01, 2.0]),
    logit_bias=st.dictionaries(TOKEN_IDS, st.floats(-100, 100, width=32), max_size=5).map(
        lambda biases: tuple(biases.items())
    ),
)
histories = st.builds(
    lambda sampling, prompt, output, logits: History(
        sampling, tuple(prompt + output), len(prompt), torch.tensor(logits)
    ),
    samplings,
    st.lists(TOKEN_IDS, min_size=1, max_size=8),
    st.lists(TOKEN_IDS, max_size=8),
    st.lists(st.floats(-30, 30, width=32), min_size=VOCAB_SIZE, max_size=VOCAB_SIZE),
)


@settings(max_examples=300)
@given(batch=st.lists(histories, min_size=1, max_size=5))
def test_a_batch_is_changed_as_each_row_alone_by_definition(batch: list[History]) -> None:
    logits = torch.stack([history.logits for history in batch])
    rows = [history.row for history in batch]
    add_bias_(logits, rows)
    penalise_(logits, rows)
    expected = torch.stack([history.by_definition() for history in batch])
    assert torch.equal(logits, expected)


@settings(max_examples=150)
@given(batch=st.lists(histories, min_size=1, max_size=5))
def test_the_sampler_chooses_from_what_the_definition_gives(batch: list[History]) -> None:
    logits = torch.stack([history.logits for history in batch])
    before = logits.clone()
    sampled = Sampler().sample(logits, [history.row for history in batch]).wait()
    assert torch.equal(logits, before)
    for token, history in zip(sampled, batch, strict=True):
        plain = history._replace(sampling=without_penalties(history.sampling))
        assert [token] == Sampler().sample(history.by_definition()[None], [plain.row]).wait()


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(9, presence_penalty=0.5), [4.0, -3.0, 1.5, 0.5]),
        (Sampling(9, frequency_penalty=0.25), [4.0, -3.0, 1.5, 0.75]),
        (Sampling(9, repetition_penalty=2.0), [2.0, -6.0, 1.0, 0.5]),
        (Sampling(9, logit_bias=((1, 5.0), (3, -2.0))), [4.0, 2.0, 2.0, -1.0]),
        (
            Sampling(9, 1.0, repetition_penalty=2.0, logit_bias=((1, 5.0), (3, -2.0))),
            [2.0, 1.0, 1.0, -2.0],
        ),
    ],
    ids=["presence", "frequency", "repetition", "bias", "bias-before-repetition"],
)
def test_by_hand(sampling: Sampling, expected: list[float]) -> None:
    """Prompt 0 and 1 twice, output 2 twice and 3 once."""
    logits = torch.tensor([[4.0, -3.0, 2.0, 1.0]])
    row = row_of(sampling, (0, 1, 1, 0, 2, 3, 2), 4)
    add_bias_(logits, [row])
    penalise_(logits, [row])
    assert logits[0].tolist() == expected


def test_a_reference_that_counts_the_prompt_as_output_differs() -> None:
    """The comparison above can fail."""
    sampling = Sampling(9, presence_penalty=0.5)
    logits = torch.tensor([[4.0, -3.0]])
    penalise_(logits, [row_of(sampling, (0, 1), 1)])
    assert not torch.equal(logits[0], plain_logits(torch.tensor([4.0, -3.0]), sampling, (0, 1), 0))


def test_rows_without_any_of_it_get_the_very_logits() -> None:
    """The usual case costs nothing, not even a copy."""
    logits = torch.randn(3, VOCAB_SIZE)
    logits.requires_grad_(False)
    seen = []

    class Watched(torch.Tensor):
        def clone(self, *args: object, **kwargs: object) -> "Watched":
            seen.append(self)
            return self

    rows = [row_of(Sampling(9, temperature=0.0, seed=index), (1, 2), 1) for index in range(3)]
    Sampler().sample(logits.as_subclass(Watched), rows)
    assert not seen
    Sampler().sample(
        logits.as_subclass(Watched), [row_of(Sampling(9, presence_penalty=1.0), (1, 2), 1)] * 3
    )
    assert seen


def test_row_75_a_bias_on_every_token_leaves_the_distribution() -> None:
    logits = torch.randn(1, 512, generator=torch.Generator().manual_seed(3)) * 4
    for bias in (-100.0, 100.0):
        sampling = Sampling(9, 0.9, logit_bias=tuple((index, bias) for index in range(512)))
        numbers = random.Random(1)  # noqa: S311
        tokens = {
            Sampler()
            .sample(logits, [row_of(sampling, (1,) * numbers.randrange(1, 400), 1)])
            .wait()[0]
            .token_id
            for _ in range(60)
        }
        assert 5 < len(tokens) < 60


def test_extremes_stay_finite() -> None:
    logits = torch.tensor([[1e30, -1e30, 0.0, 5.0]])
    sampling = Sampling(
        9,
        1.0,
        repetition_penalty=0.01,
        presence_penalty=-2.0,
        frequency_penalty=-2.0,
        logit_bias=((0, 100.0), (1, -100.0)),
    )
    row = row_of(sampling, (0, 1, 2, 3), 1)
    add_bias_(logits, [row])
    penalise_(logits, [row])
    assert logits.isfinite().all()


def test_ids_outside_the_vocabulary_are_left_out() -> None:
    logits = torch.zeros(2, 4)
    row = row_of(Sampling(9, logit_bias=((4, 1.0), (-1, 2.0), (3, 3.0))), (1,), 1)
    add_bias_(logits, [row, row])
    assert logits.tolist() == [[0.0, 0.0, 0.0, 3.0]] * 2
