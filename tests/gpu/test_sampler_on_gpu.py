"""The sampler on a GPU: the CPU's draws, and rows that do not see each other."""

import pytest
import torch

from shared.engine.penalties import add_bias_, penalise_
from shared.engine.random_draw import draw
from shared.engine.sample_row import SampleRow
from shared.engine.sampler import Sampler
from shared.protocol import Sampling
from tests.unit.engine.plain_sampling import row_of

pytestmark = pytest.mark.gpu

NUM_ROWS = 96
CASES = [
    {"temperature": 0.0},
    {"temperature": 0.8},
    {"temperature": 1.0, "top_k": 40},
    {"temperature": 1.0, "top_p": 0.9, "top_k": 200},
    {"temperature": 1.3, "top_p": 0.7},
    {"temperature": 0.0, "repetition_penalty": 1.3, "frequency_penalty": 0.4},
    {"temperature": 0.9, "presence_penalty": 0.8, "min_p": 0.05},
    {"temperature": 0.0, "logit_bias": tuple((token_id, 9.0) for token_id in range(0, 60, 7))},
    {"temperature": 0.7, "min_tokens": 10**6, "stop_token_ids": (1, 2), "top_k": 50, "min_p": 0.1},
]
NUM_WORDS = 4


def make_rows() -> list[SampleRow]:
    """Every third row with a grammar that allows ids below 32 * NUM_WORDS with a bit set."""
    rows = []
    for index in range(NUM_ROWS):
        sampling = Sampling(8, seed=index % 7, logprobs=3, **CASES[index % len(CASES)])  # type: ignore[arg-type]
        token_ids = tuple((index + step * step) % 61 for step in range(20 + index))
        generator = torch.Generator().manual_seed(index)
        bits = torch.randint(1, 2**31, (NUM_WORDS,), dtype=torch.int32, generator=generator)
        row = row_of(sampling, token_ids, 10)
        rows.append(row if index % 3 else row._replace(allowed=bits))
    return rows


def test_the_same_bits_are_drawn() -> None:
    seeds = torch.randint(-(2**62), 2**62, (1000,), generator=torch.Generator().manual_seed(1))
    positions = torch.arange(1000)
    assert torch.equal(draw(seeds.cuda(), positions.cuda()).cpu(), draw(seeds, positions))


@pytest.mark.parametrize("vocab_size", [64, 5000, 128256])
def test_a_row_gets_its_token_whatever_shares_the_batch(vocab_size: int) -> None:
    rows = make_rows()
    logits = torch.randn(NUM_ROWS, vocab_size, generator=torch.Generator().manual_seed(2)) * 4
    on_gpu = logits.cuda()
    together = Sampler().sample(on_gpu, rows)
    for picked in ([3], list(range(5, 40)), list(range(NUM_ROWS - 1, -1, -3))):
        apart = Sampler().sample(on_gpu[picked], [rows[index] for index in picked])
        assert [token.token_id for token in apart] == [together[i].token_id for i in picked]
    on_cpu = Sampler().sample(logits, rows)
    different = sum(a.token_id != b.token_id for a, b in zip(together, on_cpu, strict=True))
    assert different == 0


def test_bias_and_penalties_are_the_same_bits() -> None:
    rows = make_rows()
    logits = torch.randn(NUM_ROWS, 5000, generator=torch.Generator().manual_seed(3)) * 4
    on_gpu = logits.cuda()
    for values in (logits, on_gpu):
        add_bias_(values, rows)
        penalise_(values, rows)
    assert torch.equal(on_gpu.cpu(), logits)
