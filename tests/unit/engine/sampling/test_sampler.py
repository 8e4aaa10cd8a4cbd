"""Sampling: the right distribution, from a draw that depends on (seed, position) only."""

import math
import random

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from shared.engine.sampling.random_draw import as_int64, draw, uniform
from shared.engine.sampling.sample_row import SampleRow
from shared.engine.sampling.sampled_tokens import SampledToken
from shared.engine.sampling.sampler import Sampler
from shared.protocol import Sampling
from tests.unit.engine.sampling.plain_sampling import plain_candidates, row_of

torch.set_num_threads(1)


def sample(logits: list[float], sampling: Sampling, positions: range) -> list[int]:
    rows = [SampleRow(sampling, position, 0) for position in positions]
    return [
        token.token_id
        for token in Sampler().sample(torch.tensor(logits).repeat(len(rows), 1), rows).wait()
    ]


def assert_distribution(tokens: list[int], expected: list[float]) -> None:
    """Chi-square, 99.99 % point by Wilson and Hilferty's approximation."""
    n = len(tokens)
    cells = [p for p in expected if p > 0]
    assert all(expected[token] > 0 for token in tokens)
    chi = sum(
        (tokens.count(token) - n * p) ** 2 / (n * p) for token, p in enumerate(expected) if p > 0
    )
    k = len(cells) - 1
    limit = k * (1 - 2 / (9 * k) + 3.719 * math.sqrt(2 / (9 * k))) ** 3
    assert chi < limit, (chi, limit)


def softmax(logits: list[float], temperature: float = 1.0) -> list[float]:
    weights = [math.exp(x / temperature) for x in logits]
    return [w / sum(weights) for w in weights]


LOGITS = [0.3, 2.0, -1.0, 1.2, 0.0, 1.9, -3.0, 0.7]


def test_greedy_takes_the_lowest_of_equal_ids() -> None:
    assert sample([1.0, 3.0, 3.0, 2.0], Sampling(1, temperature=0.0), range(3)) == [1, 1, 1]


@pytest.mark.parametrize("temperature", [5e-324, 1e-40, 1e-5])
def test_tiny_temperatures_are_greedy(temperature: float) -> None:
    logits = [1.0, 3.0, 3.0, 2.9999998]
    assert set(sample(logits, Sampling(1, temperature=temperature), range(200))) == {1}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_temperature_gives_the_softmax(temperature: float) -> None:
    tokens = sample(LOGITS, Sampling(1, temperature=temperature, seed=9), range(20000))
    assert_distribution(tokens, softmax(LOGITS, temperature))


def test_the_distribution_holds_over_seeds_at_one_position_too() -> None:
    rows = [SampleRow(Sampling(1, seed=seed), 7, 0) for seed in range(20000)]
    sampled = Sampler().sample(torch.tensor(LOGITS).repeat(len(rows), 1), rows).wait()
    assert_distribution([token.token_id for token in sampled], softmax(LOGITS))


def test_the_statistical_test_can_fail() -> None:
    tokens = sample(LOGITS, Sampling(1, temperature=1.05, seed=9), range(20000))
    with pytest.raises(AssertionError):
        assert_distribution(tokens, softmax(LOGITS, 1.0))


def test_top_k_keeps_exactly_k_and_renormalises() -> None:
    tokens = sample(LOGITS, Sampling(1, top_k=3, seed=1), range(10000))
    kept = softmax([LOGITS[1], LOGITS[5], LOGITS[3]])
    assert_distribution(tokens, [0, kept[0], 0, kept[2], 0, kept[1], 0, 0])
    ties = sample([1.0] * 6, Sampling(1, top_k=2, seed=1), range(500))
    assert set(ties) == {0, 1}
    assert set(sample(LOGITS, Sampling(1, top_k=10**9), range(2000))) == set(range(8))


def test_top_p_keeps_the_smallest_set_that_reaches_p() -> None:
    logits = [math.log(p) for p in (0.1, 0.4, 0.2, 0.3)]
    cases = {0.39: {1}, 0.41: {1, 3}, 0.69: {1, 3}, 0.71: {1, 2, 3}, 0.95: {0, 1, 2, 3}}
    for top_p, kept in cases.items():
        assert set(sample(logits, Sampling(1, top_p=top_p, seed=2), range(2000))) == kept
    assert set(sample(logits, Sampling(1, top_p=1e-9), range(200))) == {1}


def test_top_p_works_on_what_top_k_left() -> None:
    logits = [math.log(p) for p in (0.4, 0.3, 0.2, 0.1)]
    assert set(sample(logits, Sampling(1, top_k=2, top_p=0.56), range(2000))) == {0}
    assert set(sample(logits, Sampling(1, top_k=2, top_p=0.58), range(2000))) == {0, 1}


def test_min_p_keeps_what_has_this_share_of_the_likeliest() -> None:
    logits = [math.log(p) for p in (0.1, 0.4, 0.2, 0.3)]
    cases = {0.0: {0, 1, 2, 3}, 0.24: {0, 1, 2, 3}, 0.26: {1, 2, 3}, 0.6: {1, 3}, 1.0: {1}}
    for min_p, kept in cases.items():
        assert set(sample(logits, Sampling(1, min_p=min_p, seed=2), range(2000))) == kept
    assert set(sample([2.0, 2.0, 1.0], Sampling(1, min_p=1.0), range(200))) == {0, 1}


def test_min_p_is_of_the_probabilities_after_temperature() -> None:
    tokens = sample(LOGITS, Sampling(1, temperature=2.0, min_p=0.5, seed=4), range(20000))
    weights = [w if w >= 0.5 else 0 for w in (math.exp((x - 2.0) / 2.0) for x in LOGITS)]
    assert_distribution(tokens, [w / sum(weights) for w in weights])
    assert sum(w > 0 for w in weights) == 4


@settings(max_examples=40)
@given(
    logits=st.lists(st.integers(-12, 12).map(lambda n: n / 4), min_size=2, max_size=9),
    sampling=st.builds(
        Sampling,
        max_tokens=st.just(1),
        temperature=st.sampled_from([0.7, 1.0, 1.6]),
        top_k=st.sampled_from([0, 1, 3]),
        top_p=st.sampled_from([1.0, 0.83, 0.41]),
        min_p=st.sampled_from([0.0, 0.07, 0.33]),
    ),
)
def test_nothing_is_drawn_that_a_cut_leaves_out(logits: list[float], sampling: Sampling) -> None:
    candidates = plain_candidates(logits, sampling)
    drawn = set(sample(logits, sampling, range(300)))
    assert drawn <= candidates
    weights = {token: math.exp(logits[token] / sampling.temperature) for token in candidates}
    likely = {t for t, weight in weights.items() if weight > 0.1 * sum(weights.values())}
    assert likely <= drawn


def random_rows(count: int, rng: random.Random) -> list[SampleRow]:
    return [
        row_of(
            Sampling(
                8,
                temperature=rng.choice([0.0, 0.3, 1.0, 1.7]),
                top_k=rng.choice([0, 0, 1, 5, 40]),
                top_p=rng.choice([1.0, 0.9, 0.3]),
                seed=rng.randrange(-(2**63), 2**64),
                min_tokens=rng.choice([0, 4]),
                eos_token_ids=(3,),
                stop_token_ids=(5, 99999, -1),
                logprobs=rng.choice([-1, 0, 3]),
                min_p=rng.choice([0.0, 0.2]),
                presence_penalty=rng.choice([0.0, 0.5]),
                frequency_penalty=rng.choice([0.0, -0.3]),
                repetition_penalty=rng.choice([1.0, 1.2]),
                logit_bias=rng.choice([(), ((2, 3.0), (6, -100.0))]),
            ),
            tuple(rng.randrange(7) for _ in range(rng.randrange(9, 90))),
            rng.randrange(1, 9),
        )
        for _ in range(count)
    ]


def test_rows_do_not_see_each_other() -> None:
    rng = random.Random(4)  # noqa: S311
    for vocab_size in (7, 64, 1003):
        rows = random_rows(24, rng)
        logits = torch.randn(24, vocab_size, generator=torch.Generator().manual_seed(1)) * 4
        together = Sampler().sample(logits, rows).wait()
        for _ in range(6):
            picked = rng.sample(range(24), rng.randrange(1, 24))
            apart = Sampler().sample(logits[picked], [rows[index] for index in picked]).wait()
            assert apart == [together[index] for index in picked]


def test_the_draw_is_splitmix64_in_plain_integers() -> None:
    def mix(bits: int) -> int:
        bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        bits = (bits ^ bits >> 27) * 0x94D049BB133111EB % 2**64
        return bits ^ bits >> 31

    golden = 0x9E3779B97F4A7C15
    rng = random.Random(7)  # noqa: S311
    pairs = [(rng.randrange(2**64), rng.randrange(2**31)) for _ in range(200)] + [(2**64 - 1, 0)]
    seeds = torch.tensor([as_int64(seed) for seed, _ in pairs])
    positions = torch.tensor([position for _, position in pairs])
    expected = [
        mix((mix((seed + golden) % 2**64) + (position + 1) * golden) % 2**64)
        for seed, position in pairs
    ]
    assert [bits % 2**64 for bits in draw(seeds, positions).tolist()] == expected
    assert uniform(seeds, positions).tolist() == [(bits >> 11) * 2.0**-53 for bits in expected]


def test_neighbouring_seeds_and_positions_are_independent() -> None:
    values = uniform(*torch.meshgrid(torch.arange(200), torch.arange(200), indexing="ij"))
    assert abs(values.mean().item() - 0.5) < 0.01
    centred = values - 0.5
    for left, right in ((centred[:-1], centred[1:]), (centred[:, :-1], centred[:, 1:])):
        correlation = (left * right).mean() * 12
        assert abs(correlation.item()) < 0.025


def test_min_tokens_mask_only_what_could_end_the_request() -> None:
    logits = torch.tensor([[0.0, 5.0, 4.0, 1.0]])

    def first(num_output_tokens: int, *, ignore_eos: bool = False) -> int:
        sampling = Sampling(
            9, 0.0, min_tokens=2, ignore_eos=ignore_eos, eos_token_ids=(1,), stop_token_ids=(2,)
        )
        return (
            Sampler().sample(logits, [SampleRow(sampling, 5, num_output_tokens)]).wait()[0].token_id
        )

    assert [first(0), first(1), first(2)] == [3, 3, 1]
    assert first(0, ignore_eos=True) == 1
    assert logits.tolist() == [[0.0, 5.0, 4.0, 1.0]]


def test_a_mask_over_the_whole_vocabulary_is_dropped() -> None:
    sampling = Sampling(9, 1.0, min_tokens=2, stop_token_ids=(0, 1, 2))
    [token] = Sampler().sample(torch.tensor([[0.0, 9.0, 1.0]]), [SampleRow(sampling, 5, 0)]).wait()
    assert token.token_id in (0, 1, 2)


def test_logprobs_are_of_the_raw_logits() -> None:
    sampling = Sampling(9, temperature=0.1, top_k=1, min_tokens=2, stop_token_ids=(1,), logprobs=3)
    rows = [SampleRow(sampling, 5, 0), SampleRow(Sampling(9, 0.0), 5, 0)]
    logits = torch.tensor([LOGITS, LOGITS])
    asked, silent = Sampler().sample(logits, rows).wait()
    expected = torch.log_softmax(torch.tensor(LOGITS), -1)
    assert asked.token_id == 5
    assert asked.logprobs is not None
    assert asked.logprobs.top_ids == (1, 5, 3)
    assert asked.logprobs.logprob == pytest.approx(expected[5].item())
    assert asked.logprobs.top_logprobs == pytest.approx(expected[[1, 5, 3]].tolist())
    assert silent == SampledToken(1, None)
