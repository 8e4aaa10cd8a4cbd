"""What one policy came to, in numbers that can be compared and drawn."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from services.simulator.batching.device import Batching
from services.simulator.batching.request import Request
from services.simulator.batching.slots import Stay

QUANTILES = (0.5, 0.95, 0.99)


@dataclass(frozen=True)
class Outcome:
    """Of one policy on one load; seconds."""

    policy: str
    num_requests: int
    elapsed_s: float
    """from the first arrival to the last token"""
    num_output: int
    """tokens of all answers"""
    latency_s: tuple[float, ...]
    """P50, P95, P99 from arrival to last token"""
    wait_s: tuple[float, ...]
    """the same, to the first token"""
    padding_ratio: float
    """share of the computed tokens that were padding, or were computed again"""
    stays: tuple[Stay, ...]
    """which place each request had, and when"""

    @property
    def requests_a_second(self) -> float:
        return self.num_requests / self.elapsed_s

    @property
    def tokens_a_second(self) -> float:
        return self.num_output / self.elapsed_s

    def record(self) -> dict[str, Any]:
        """Its JSON; without the places."""
        return {
            "policy": self.policy,
            "requests": self.num_requests,
            "elapsed_s": self.elapsed_s,
            "requests_per_s": self.requests_a_second,
            "tokens_per_s": self.tokens_a_second,
            "latency_s": _named(self.latency_s),
            "ttft_s": _named(self.wait_s),
            "padding_ratio": self.padding_ratio,
        }


def outcome_of(policy: str, batching: Batching, requests: Sequence[Request]) -> Outcome:
    """Of a run that is over."""
    num_rows = sum(request.num_rows for request in requests)
    return Outcome(
        policy=policy,
        num_requests=len(requests),
        elapsed_s=max(one.tokens_s[-1] for one in requests) - requests[0].at_s,
        num_output=sum(one.num_output for one in requests),
        latency_s=_quantiles([one.latency_s for one in requests]),
        wait_s=_quantiles([one.wait_s for one in requests]),
        padding_ratio=1 - num_rows / batching.num_rows,
        stays=tuple(batching.slots.stays),
    )


def _named(values: Sequence[float]) -> dict[str, float]:
    return {f"p{q * 100:g}": value for q, value in zip(QUANTILES, values, strict=True)}


def _quantiles(values: Sequence[float]) -> tuple[float, ...]:
    """By nearest rank."""
    ordered = sorted(values)
    return tuple(ordered[max(ceil(q * len(ordered) - 1e-9), 1) - 1] for q in QUANTILES)
