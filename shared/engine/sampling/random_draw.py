"""Random numbers without state: the draw at a position is a function of (seed, position) alone.

SplitMix64 read as a counter: the seed is mixed into a 64-bit start, the position steps it by the
golden-ratio constant, and the finaliser of Stafford (variant 13) mixes the result. Integer
tensor arithmetic modulo 2**64, so every device draws the same bits.
"""

import torch

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as int64
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB


def draw(seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """i64[R] and i64[R] -> 64 random bits each, i64[R]."""
    return _mix(_mix(seeds + _GOLDEN) + (positions + 1) * _GOLDEN)


def uniform(seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """f64[R] in [0, 1): the upper 53 bits of the draw."""
    return _shift_right(draw(seeds, positions), 11).double() * 2.0**-53


def as_int64(seed: int) -> int:
    """The low 64 bits of any integer, as the int64 with those bits."""
    low = seed & (2**64 - 1)
    return low - 2**64 if low >= 2**63 else low


def _mix(bits: torch.Tensor) -> torch.Tensor:
    bits = (bits ^ _shift_right(bits, 30)) * _MIX_1
    bits = (bits ^ _shift_right(bits, 27)) * _MIX_2
    return bits ^ _shift_right(bits, 31)


def _shift_right(bits: torch.Tensor, count: int) -> torch.Tensor:
    """Logical shift; torch's own keeps the sign."""
    return torch.bitwise_and(bits >> count, 2 ** (64 - count) - 1)
