"""Torch reference of the digest, with the kernel's own signature: 64-bit products wrap around."""

import torch

from kernels.digest.block_digest import WHOLE_ROW, Row

GOLDEN = 0x9E3779B97F4A7C15
FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def block_digests(
    pool: torch.Tensor,
    bounds: torch.Tensor,
    first_part: int,
    block_ids: torch.Tensor,
    output: torch.Tensor,
    row: Row = WHOLE_ROW,
) -> None:
    """See kernels/digest/block_digest.py. The first piece has it all."""
    words = pool.view(torch.int64)[block_ids]
    output.zero_()
    for column in range(output.shape[1]):
        start, end = bounds[first_part + column :][:2].tolist()
        at = torch.arange(end - start)
        place = at // row.own * row.whole + row.first + at % row.own
        keys = _mix((place + 1) * _signed(GOLDEN))
        output[:, column, 0] = _mix(words[:, start:end] ^ keys).sum(1)


def _mix(x: torch.Tensor) -> torch.Tensor:
    x = (x ^ _shifted(x, 30)) * _signed(FACTORS[0])
    x = (x ^ _shifted(x, 27)) * _signed(FACTORS[1])
    return x ^ _shifted(x, 31)


def _shifted(x: torch.Tensor, bits: int) -> torch.Tensor:
    """To the right, zeros from the left."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word
