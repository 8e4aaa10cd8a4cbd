"""The device's sampler, its kernels interpreted where there is no GPU, against the CPU's."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from triton.runtime.interpreter import InterpretedFunction

from kernels.sampling.peaks import peaks_kernel
from shared.engine.sampling.device_sampler import DeviceSampler
from shared.engine.sampling.device_tokens import IN_FLIGHT
from shared.engine.sampling.sample_row import SampleRow
from shared.engine.sampling.sampled_tokens import SampledToken
from shared.engine.sampling.sampler import Sampler
from shared.protocol import Sampling
from tests.unit.engine.sampling.plain_sampling import row_of

pytestmark = pytest.mark.filterwarnings(  # Triton's interpreter, for a loop over a loaded number
    "ignore:Conversion of an array with ndim:DeprecationWarning",
    "ignore:invalid value encountered:RuntimeWarning",
)
INTERPRETED = isinstance(peaks_kernel, InterpretedFunction)
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def random_row(rng: random.Random, vocab_size: int) -> SampleRow:
    """Any of what a request can ask for, mostly only some of it."""
    tokens = tuple(rng.randrange(vocab_size) for _ in range(rng.randrange(4, 40)))
    sampling = Sampling(
        8,
        temperature=rng.choice([0.0, 1e-3, 0.3, 0.7, 1.0, 1.7]),
        top_k=rng.choice([0, 0, 1, 5, 40, vocab_size]),
        top_p=rng.choice([1.0, 1.0, 0.9, 0.3, 1e-9]),
        seed=rng.randrange(-(2**63), 2**64),
        min_p=rng.choice([0.0, 0.0, 0.2]),
    )
    if rng.random() < 0.6:
        sampling = replace(
            sampling,
            min_tokens=rng.choice([0, 30]),
            eos_token_ids=(3,),
            stop_token_ids=(5, 99999, -1),
            ignore_eos=rng.random() < 0.3,
            logprobs=rng.choice([-1, 0, 3]),
            presence_penalty=rng.choice([0.0, 0.5]),
            frequency_penalty=rng.choice([0.0, -0.3]),
            repetition_penalty=rng.choice([1.0, 1.2]),
            logit_bias=rng.choice([(), ((2, 3.0), (6, -100.0), (vocab_size, 1.0))]),
        )
    row = row_of(sampling, tokens, rng.randrange(1, 4))
    if rng.random() < 0.2:
        words = [rng.randrange(-(2**31), 2**31) for _ in range(-(-vocab_size // 32))]
        row = row._replace(allowed=torch.tensor(words, dtype=torch.int32))
    return row


def random_logits(rng: random.Random, num_rows: int, vocab_size: int) -> torch.Tensor:
    """Many ties, some tokens that cannot come at all."""
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    logits = torch.randn(num_rows, vocab_size, generator=generator) * rng.choice([1, 4])
    logits = (logits * 8).round() / 8
    logits[torch.rand(logits.shape, generator=generator) < 0.1] = -torch.inf
    logits[:, rng.randrange(vocab_size)] = 0.5
    return logits


def by_both(
    logits: torch.Tensor, rows: Sequence[SampleRow]
) -> tuple[list[SampledToken], list[SampledToken]]:
    """What the device chooses and what the CPU does, logprobs rounded."""
    sampler = DeviceSampler(logits.shape[1], DEVICE)
    return rounded(sampler.sample(logits.to(DEVICE), rows).wait()), rounded(
        Sampler().sample(logits, rows).wait()
    )


def rounded(tokens: Sequence[SampledToken]) -> list[Any]:
    return [
        (
            token.token_id,
            token.logprobs
            and (
                round(token.logprobs.logprob, 4),
                token.logprobs.top_ids,
                [round(value, 4) for value in token.logprobs.top_logprobs],
            ),
        )
        for token in tokens
    ]


@pytest.mark.parametrize("vocab_size", [7, 97, 1000])
def test_the_device_chooses_what_the_cpu_does(vocab_size: int) -> None:
    rng = random.Random(vocab_size)  # noqa: S311
    rows = [random_row(rng, vocab_size) for _ in range(24)]
    logits = random_logits(rng, len(rows), vocab_size)
    before = logits.clone()
    on_device, on_cpu = by_both(logits, rows)
    assert on_device == on_cpu
    assert torch.equal(logits, before)


def test_one_other_logit_is_found() -> None:
    """The comparison above can fail."""
    rng = random.Random(1)  # noqa: S311
    logits = random_logits(rng, 1, 97)
    row = SampleRow(Sampling(8, 0.0), 5, 0)
    [chosen] = Sampler().sample(logits, [row]).wait()
    sampler = DeviceSampler(97, DEVICE)
    logits[0, chosen.token_id] -= 9
    assert sampler.sample(logits.to(DEVICE), [row]).wait() != [chosen]


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 1.3},
        {"top_k": 2},
        {"top_p": 0.2},
        {"min_p": 0.4},
        {"seed": 8},
        {"repetition_penalty": 1.6},
        {"frequency_penalty": 1.6},
        {"presence_penalty": 1.6},
        {"logit_bias": ((2, 9.0),)},
    ],
    ids=str,
)
def test_a_parameter_that_is_lost_is_found(change: dict[str, Any]) -> None:
    """Each of them decides a token within a few positions."""
    logits = random_logits(random.Random(3), 1, 97).expand(24, 97)  # noqa: S311
    sampling = Sampling(8, 0.8, seed=7)
    tokens = tuple(logits[0].argsort(descending=True)[:9].tolist())
    with_it = [row_of(replace(sampling, **change), tokens * 2, 3) for _ in range(24)]
    rows = [row._replace(position=5 + index) for index, row in enumerate(with_it)]
    plain = [SampleRow(sampling, row.position, 9) for row in rows]
    on_device, on_cpu = by_both(logits, rows)
    assert on_device == on_cpu
    assert on_device != rounded(Sampler().sample(logits, plain).wait())


def test_counts_run_ahead_of_the_hosts() -> None:
    """Every step sees the token of the step before; the host hears of it one step later."""
    sampling = Sampling(
        99, 0.9, seed=3, repetition_penalty=1.4, frequency_penalty=0.7, presence_penalty=0.5
    )
    logits = random_logits(random.Random(6), 2, 31).clamp(min=-2)  # noqa: S311
    prompts = [(1, 2, 3, 2), (4, 5, 6)]
    late = [row_of(sampling, prompt, 2) for prompt in prompts]
    exact = [row_of(sampling, prompt, 2) for prompt in prompts]
    sampler = DeviceSampler(31, DEVICE)
    untold: list[tuple[int, int]] = []
    for step in range(12):
        there = [0] if step == 7 else [0, 1]  # the second sequence misses a step
        sampled = sampler.sample(logits[there].to(DEVICE), [late[i] for i in there])
        for i, token_id in untold:
            told(late[i], token_id)
        wanted = Sampler().sample(logits[there], [exact[i] for i in there]).wait()
        assert sampled.wait() == wanted
        untold = [(i, token.token_id) for i, token in zip(there, wanted, strict=True)]
        for i, token_id in untold:
            told(exact[i], token_id)
            exact[i] = exact[i]._replace(position=exact[i].position + 1)
            late[i] = late[i]._replace(position=late[i].position + 1)


def told(row: SampleRow, token_id: int) -> None:
    assert row.counts is not None
    row.counts.append(token_id)


def test_counts_are_read_anew_where_a_sequence_does_not_go_on() -> None:
    """A step back means that the device counted what the host has given up."""
    sampling = Sampling(99, 0.0, frequency_penalty=1.0)
    logits = torch.tensor([[3.0, 2.5, 1.8, 0.0]])
    row = row_of(sampling, (3, 3), 1)
    sampler = DeviceSampler(4, DEVICE)
    ids = []
    for position in (2, 3, 2, 3, 4):
        row = row._replace(position=position)
        ids += [token.token_id for token in sampler.sample(logits.to(DEVICE), [row]).wait()]
    assert ids == [0, 1, 0, 1, 0]


def test_ids_stay_until_their_buffer_is_used_again() -> None:
    sampler = DeviceSampler(7, DEVICE)
    row = SampleRow(Sampling(9, 0.0), 5, 0)
    calls = []
    for token_id in range(IN_FLIGHT):
        logits = torch.zeros(1, 7, device=DEVICE)
        logits[0, token_id] = 1.0
        calls.append(sampler.sample(logits, [row]))
    assert [call.device_ids.tolist() for call in calls] == [[0], [1], [2], [3]]
    sampler.sample(torch.ones(1, 7, device=DEVICE), [row])
    assert [call.wait()[0].token_id for call in calls] == [0, 1, 2, 3]
    assert all(call.ready() for call in calls)


def test_an_empty_batch_has_no_tokens() -> None:
    assert DeviceSampler(7, DEVICE).sample(torch.zeros(0, 7, device=DEVICE), []).wait() == []


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("top_p", [1.0, 0.9])
@pytest.mark.parametrize("value", [float("-inf"), float("nan")])
def test_a_row_without_any_weight_gets_some_token(
    value: float, top_p: float, temperature: float
) -> None:
    row = SampleRow(Sampling(9, temperature, top_p=top_p), 5, 0)
    logits = torch.full((1, 97), value, device=DEVICE)
    assert DeviceSampler(97, DEVICE).sample(logits, [row]).wait()[0].token_id in range(97)


def test_more_rows_than_before() -> None:
    rng = random.Random(2)  # noqa: S311
    sampler = DeviceSampler(11, DEVICE)
    for count in (1, 70, 3):
        rows = [random_row(rng, 11) for _ in range(count)]
        logits = random_logits(rng, count, 11)
        sampled = rounded(sampler.sample(logits.to(DEVICE), rows).wait())
        assert sampled == rounded(Sampler().sample(logits, rows).wait())
