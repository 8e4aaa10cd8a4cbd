"""What every group of ranks keeps: run as `ranks_contract RANK SIZE FOLDER DEVICE`, one process
per rank, or call `check` once per rank."""

import sys
from pathlib import Path

import torch

from shared.engine.loading.devices import resolve_device
from shared.engine.parallel.join import join
from shared.engine.parallel.ranks import Ranks

WIDTH, VOCAB_SIZE = 32, 37
REAL_WIDTH = 8192
"""of rows that decode steps of large models add up"""


def check(ranks: Ranks, device: torch.device) -> None:
    """AssertionError if this rank is told anything wrong."""
    for dtype in (torch.float32, torch.bfloat16):
        for num_rows, width in ((1, WIDTH), (3, WIDTH), (1, REAL_WIDTH), (300, REAL_WIDTH)):
            _check_sum(ranks, device, dtype, (num_rows, width))
    _check_gather(ranks, device)
    ids = torch.arange(5, device=device) + 10 * ranks.rank
    assert ranks.broadcast(ids).tolist() == list(range(5))
    assert ranks.least(7 - ranks.rank) == 8 - ranks.size


def _check_sum(
    ranks: Ranks, device: torch.device, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    generator = torch.Generator().manual_seed(shape[0])
    drawn = torch.randn(ranks.size + 1, *shape, generator=generator).to(device, dtype)
    result = ranks.reduce(drawn[ranks.rank].clone(), drawn[-1])
    wanted = drawn.double().sum(0)
    # Each of the size roundings is of a number no larger than the sum of all sizes.
    rounding = torch.finfo(dtype).eps * drawn.double().abs().sum(0)
    assert ((result.double() - wanted).abs() <= ranks.size * rounding).all()


def _check_gather(ranks: Ranks, device: torch.device) -> None:
    width = -(-VOCAB_SIZE // ranks.size)
    everything = torch.randn(4, width * ranks.size, generator=torch.Generator().manual_seed(1))
    own = everything[:, ranks.rank * width : (ranks.rank + 1) * width].to(device)
    output = torch.empty(4, VOCAB_SIZE, device=device)
    gathered = ranks.gather(own, output)
    assert gathered.shape == output.shape
    if ranks.rank == 0:
        assert torch.equal(gathered.cpu(), everything[:, :VOCAB_SIZE])


def main() -> None:
    rank, size = int(sys.argv[1]), int(sys.argv[2])
    folder, device = Path(sys.argv[3]), resolve_device(sys.argv[4], rank)
    ranks = join(rank, size, device, folder / "ranks")
    check(ranks, device)
    ranks.close()


if __name__ == "__main__":
    main()
