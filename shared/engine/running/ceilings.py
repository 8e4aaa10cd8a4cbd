"""What a device reaches when it does one thing only."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Ceilings:
    """As it was measured."""

    copy_bytes_per_s: float
    """read and written bytes of a device copy"""
    matmul_flops_per_s: float
