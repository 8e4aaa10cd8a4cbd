"""The device's sampler compiled: the CPU's tokens, whatever shares the batch, without waiting."""

import random
import time
from dataclasses import replace

import pytest
import torch

from shared.engine.sampling.device_sampler import DeviceSampler
from shared.engine.sampling.random_draw import draw
from shared.engine.sampling.sample_row import SampleRow
from shared.engine.sampling.sampler import Sampler
from shared.protocol import Sampling
from tests.support.measured import Measured
from tests.unit.engine.sampling.plain_sampling import row_of

pytestmark = pytest.mark.gpu

CASES = [
    {"temperature": 0.0},
    {"temperature": 0.8},
    {"temperature": 1.0, "top_k": 40},
    {"temperature": 1.0, "top_p": 0.9, "top_k": 200},
    {"temperature": 1.3, "top_p": 0.7},
    {"temperature": 0.6, "top_p": 0.95, "min_p": 0.01},
    {"temperature": 0.0, "repetition_penalty": 1.3, "frequency_penalty": 0.4},
    {"temperature": 0.9, "presence_penalty": 0.8, "min_p": 0.05},
    {"temperature": 0.0, "logit_bias": tuple((token_id, 9.0) for token_id in range(0, 60, 7))},
    {"temperature": 0.7, "min_tokens": 10**6, "stop_token_ids": (1, 2), "top_k": 50, "min_p": 0.1},
]
NUM_WORDS = 4
DEVICE = torch.device("cuda")


def make_rows(count: int, *, logprobs: int = 3) -> list[SampleRow]:
    """Every third row with a grammar that allows ids below 32 * NUM_WORDS with a bit set."""
    rows = []
    for index in range(count):
        sampling = Sampling(
            8,
            seed=index % 7,
            logprobs=logprobs,
            **CASES[index % len(CASES)],  # type: ignore[arg-type]
        )
        token_ids = tuple((index + step * step) % 61 for step in range(20 + index))
        generator = torch.Generator().manual_seed(index)
        bits = torch.randint(1, 2**31, (NUM_WORDS,), dtype=torch.int32, generator=generator)
        row = row_of(sampling, token_ids, 10)
        rows.append(row if index % 3 else row._replace(allowed=bits))
    return rows


def ids(logits: torch.Tensor, rows: list[SampleRow]) -> list[int]:
    sampled = DeviceSampler(logits.shape[1], DEVICE).sample(logits, rows)
    return [token.token_id for token in sampled.wait()]


def test_the_same_bits_are_drawn() -> None:
    seeds = torch.randint(-(2**62), 2**62, (1000,), generator=torch.Generator().manual_seed(1))
    positions = torch.arange(1000)
    assert torch.equal(draw(seeds.cuda(), positions.cuda()).cpu(), draw(seeds, positions))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("vocab_size", [64, 5000, 128256, 151936])
@pytest.mark.parametrize("num_rows", [1, 3, 40, 96, 300])
def test_a_row_gets_the_cpus_token(num_rows: int, vocab_size: int, dtype: torch.dtype) -> None:
    """A row is shared by 64, 32, 2 programs or has one to itself."""
    rows = make_rows(num_rows)
    generator = torch.Generator(DEVICE).manual_seed(num_rows + vocab_size)
    logits = torch.randn(num_rows, vocab_size, device=DEVICE, generator=generator) * 4
    logits = logits.to(dtype)
    on_device = ids(logits, rows)
    some = sorted({*range(0, num_rows, 7), *range(min(num_rows, len(CASES)))})
    on_cpu = Sampler().sample(logits[some].cpu(), [rows[index] for index in some]).wait()
    assert [on_device[index] for index in some] == [token.token_id for token in on_cpu]


def test_a_row_gets_its_token_whatever_shares_the_batch() -> None:
    rows = make_rows(96)
    logits = torch.randn(96, 128256, generator=torch.Generator().manual_seed(2)).cuda() * 4
    together = ids(logits, rows)
    for picked in ([3], list(range(5, 40)), list(range(95, -1, -3))):
        apart = ids(logits[picked], [rows[index] for index in picked])
        assert apart == [together[index] for index in picked]


@pytest.mark.parametrize("temperature", [0.001, 0.5, 1.0, 100.0])
def test_flat_distributions(temperature: float) -> None:
    """Many candidates close to each other: an exponential's last bit moves the borders between
    them, so that a draw may fall on the other side of one."""
    logits = torch.randn(64, 151936, generator=torch.Generator().manual_seed(5))
    samplings = [Sampling(8, temperature, top_p=0.9), Sampling(8, temperature)]
    rows = [SampleRow(replace(samplings[i % 2], seed=i), i, 0) for i in range(64)]
    on_cpu = [token.token_id for token in Sampler().sample(logits, rows).wait()]
    pairs = enumerate(zip(ids(logits.cuda(), rows), on_cpu, strict=True))
    different = [(row, *pair) for row, pair in pairs if len(set(pair)) > 1]
    assert len(different) <= (temperature >= 1) * 4
    for row, ours, theirs in different:  # with top_p the likeliest come first, else the lowest ids
        order = logits[row].sort(descending=True).indices if row % 2 == 0 else torch.arange(151936)
        places = [int((order == token_id).nonzero()) for token_id in (ours, theirs)]
        assert abs(places[0] - places[1]) <= (4 if row % 2 == 0 else 1), (row, places)


def test_strided_logits() -> None:
    rows = make_rows(12)
    wide = torch.randn(
        12, 2 * 4096, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(1)
    )
    assert ids(wide[:, :4096], rows) == ids(wide[:, :4096].contiguous(), rows)
    assert ids(wide[::2, 1:4097], rows[:6]) == ids(wide[::2, 1:4097].contiguous(), rows[:6])


def test_logprobs_come_with_the_tokens() -> None:
    rows = make_rows(20)
    logits = torch.randn(20, 5000, generator=torch.Generator().manual_seed(2)) * 4
    on_device = DeviceSampler(5000, DEVICE).sample(logits.cuda(), rows).wait()
    for token, wanted in zip(on_device, Sampler().sample(logits, rows).wait(), strict=True):
        assert token.logprobs and wanted.logprobs
        assert token.logprobs.top_ids == wanted.logprobs.top_ids
        assert token.logprobs.logprob == pytest.approx(wanted.logprobs.logprob, abs=1e-4)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_nothing_waits_and_nothing_is_allocated() -> None:
    """Ids of a step are used by the next one before the host has them."""
    rows = [row._replace(allowed=None) for row in make_rows(40, logprobs=-1)]
    logits = torch.randn(40, 128256, device=DEVICE)
    sampler = DeviceSampler(128256, DEVICE)
    for step in range(8):
        following = [row._replace(position=row.position + step) for row in rows]
        sampler.sample(logits, following).wait()
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.cuda.set_sync_debug_mode("error")
    try:
        rows = [row._replace(position=row.position + 8) for row in rows]
        first = sampler.sample(logits, rows)
        rows = [row._replace(position=row.position + 1) for row in rows]
        second = sampler.sample(logits, rows)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    assert first.device_ids.tolist() == [token.token_id for token in first.wait()]
    assert second.device_ids.tolist() == [token.token_id for token in second.wait()]


def test_a_slow_step_is_not_ready_before_its_end() -> None:
    sampler = DeviceSampler(4096, DEVICE)
    row = SampleRow(Sampling(8, 0.0), 5, 0)
    for cycles in (1, 200_000_000):  # a kernel's first launch loads it, which waits for the GPU
        logits = torch.zeros(1, 4096, device=DEVICE)
        torch.cuda._sleep(cycles)
        logits[:, 77].fill_(1.0)  # an assignment to an element would wait for the GPU as well
        sampled = sampler.sample(logits, [row])
        if cycles == 1:
            sampled.wait()
    assert not sampled.ready()
    assert sampled.wait()[0].token_id == 77
    assert sampled.ready()


def test_a_step_without_tokens_is_not_ready_before_its_end() -> None:
    """Else the host would start chunk after chunk of a prompt, and a request would wait for all."""
    sampler = DeviceSampler(4096, DEVICE)
    torch.cuda._sleep(200_000_000)
    sampled = sampler.sample(torch.zeros(0, 4096, device=DEVICE), [])
    assert not sampled.ready()
    assert sampled.wait() == []
    assert sampled.ready()


def test_counts_run_ahead_of_the_hosts() -> None:
    """No token is told to the host's counts, and the device counts them all."""
    sampling = Sampling(99, 0.8, repetition_penalty=1.3, frequency_penalty=0.6, top_k=30)
    logits = torch.randn(16, 5000, generator=torch.Generator().manual_seed(8)) * 3
    ahead = [row_of(replace(sampling, seed=i), (1, 2, 3, i), 2) for i in range(16)]
    exact = [row_of(replace(sampling, seed=i), (1, 2, 3, i), 2) for i in range(16)]
    sampler, on_gpu = DeviceSampler(5000, DEVICE), logits.cuda()
    for _ in range(20):
        sampled = sampler.sample(on_gpu, ahead)
        wanted = Sampler().sample(logits, exact).wait()
        assert sampled.wait() == wanted
        for row, token in zip(exact, wanted, strict=True):
            assert row.counts is not None
            row.counts.append(token.token_id)
        ahead = [row._replace(position=row.position + 1) for row in ahead]
        exact = [row._replace(position=row.position + 1) for row in exact]


def test_launching_is_quick(measured: Measured) -> None:
    """What the host spends on a batch that asks for several things."""
    rng = random.Random(1)  # noqa: S311
    rows = [
        SampleRow(Sampling(8, rng.choice([0.0, 0.8]), top_p=rng.choice([1.0, 0.9]), seed=i), i, 0)
        for i in range(256)
    ]
    logits = torch.randn(256, 4096, device=DEVICE)
    sampler = DeviceSampler(4096, DEVICE)
    times = []
    for _ in range(30):
        start = time.perf_counter()
        sampled = sampler.sample(logits, rows)
        times.append(time.perf_counter() - start)
        sampled.wait()
    measured.at_most("launch, p50", sorted(times)[len(times) // 2] * 1e3, 2, "ms")
