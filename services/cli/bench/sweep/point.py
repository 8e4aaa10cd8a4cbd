"""One batch size of a sweep: how fast it decodes, next to what the device can do."""

from dataclasses import dataclass
from typing import Any

from services.cli.bench.engine.figures.floors import Floors


@dataclass(frozen=True)
class Point:
    """Shares are of the rates that the device was measured to reach when it does one thing only: a
    copy, and a large matrix product."""

    batch: int
    step_s: float
    """in which each sequence gets a token"""
    floor_s: float
    """the least that the reads and products of a step take at those rates"""
    read_share: float
    """of the rate of a copy"""
    product_share: float
    """of the rate of a matrix product"""
    disturbed: bool = False
    """two ways to measure the step do not agree: something else ran on the machine"""

    @classmethod
    def of(
        cls, batch: int, step_s: float, context: float, floors: Floors, *, disturbed: bool = False
    ) -> "Point":
        """`context`: positions that each of the sequences attends to."""
        size, ceilings = floors.size, floors.ceilings
        num_bytes = size.weight_bytes + batch * size.kv_read_bytes(context)
        num_products = 2 * batch * (size.layer_params + size.head_params)
        return cls(
            batch,
            step_s,
            floors.decode_step_s([context] * batch),
            num_bytes / step_s / ceilings.copy_bytes_per_s,
            num_products / step_s / ceilings.matmul_flops_per_s,
            disturbed,
        )

    @property
    def rate(self) -> float:
        """Tokens a second, of all sequences."""
        return self.batch / self.step_s

    @property
    def utilisation(self) -> float:
        """Share of the roofline."""
        return self.floor_s / self.step_s

    def record(self) -> dict[str, Any]:
        """Its JSON line."""
        return {
            "kind": "point",
            "batch": self.batch,
            "tok_s": round(self.rate, 2),
            "ms_per_token": round(self.step_s * 1e3, 4),
            "utilisation": round(self.utilisation, 4),
            "copy_rate_share": round(self.read_share, 4),
            "matmul_rate_share": round(self.product_share, 4),
            "disturbed": self.disturbed,
        }
