"""Bytes behind the last block of every pool, that belong to no block and never change.

Whoever maps the pool reads them first, by the way that blocks would come, and compares their
digest with what their owner says: a mapping that reads other bytes must bring no block.
"""

from collections.abc import Sequence
from typing import NamedTuple

MAX_PROBE_BYTES = 2**20


def probe_bytes(num_bytes: int) -> int:
    """How many follow `num_bytes` of blocks: as many, at most MAX_PROBE_BYTES."""
    return min(MAX_PROBE_BYTES, num_bytes)


class Probed(NamedTuple):
    """What reading them brought."""

    digest: int
    num_bytes: int
    seconds: float
    """that the copy took"""

    def __str__(self) -> str:
        gb_s = self.num_bytes / max(self.seconds, 1e-9) / 1e9
        return f"{self.num_bytes / 2**20:.3g} MiB of its pool read right at {gb_s:.2f} GB/s"


def odd_one(found: Sequence[Probed]) -> Probed:
    """Of probes that should have read the same, one that did not; the first if all did."""
    return next((probed for probed in found if probed.digest != found[0].digest), found[0])


def in_all(found: Sequence[Probed]) -> Probed:
    """What probes of several pools come to: the digest of all, or of one that differs."""
    num_bytes = sum(probed.num_bytes for probed in found)
    return Probed(odd_one(found).digest, num_bytes, sum(probed.seconds for probed in found))
