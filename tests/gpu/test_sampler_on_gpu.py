"""The sampler on a GPU: the CPU's draws, and rows that do not see each other."""

import pytest
import torch

from shared.engine.random_draw import draw
from shared.engine.sampler import Sampler, SampleRow
from shared.protocol import Sampling

pytestmark = pytest.mark.gpu

NUM_ROWS = 96
CASES = [
    {"temperature": 0.0},
    {"temperature": 0.8},
    {"temperature": 1.0, "top_k": 40},
    {"temperature": 1.0, "top_p": 0.9, "top_k": 200},
    {"temperature": 1.3, "top_p": 0.7},
]


def make_rows() -> list[SampleRow]:
    return [
        SampleRow(Sampling(8, seed=index % 7, logprobs=3, **CASES[index % len(CASES)]), index, 0)  # type: ignore[arg-type]
        for index in range(NUM_ROWS)
    ]


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
