"""One line of the list of the last requests, and which lines are asked for. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from services.gateway.owner.records.quantile import limit_of
from services.gateway.owner.records.receipt import Receipt
from services.gateway.owner.records.slowness import Cause

SLOW_SHARE = 0.9
"""slow is what is beyond this share of the requests that are kept"""


@dataclass(frozen=True, slots=True)
class Row:
    """A receipt in short."""

    rid: str
    group: str
    tenant: str
    state: str
    """live, done, failed or cancelled"""
    finish_reason: str
    code: str
    received_ns: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    ttft_ms: float | None
    """None: no token came yet"""
    worst_gap_ms: float
    prefill: str
    decode: str
    """workers of the last attempt"""
    num_attempts: int
    slow_because: Cause | None = None
    """None: it was not slow, or that is not known yet"""
    slow_because_ms: float | None = None

    @classmethod
    def of(cls, receipt: Receipt) -> "Row":
        last = receipt.attempts[-1] if receipt.attempts else None
        slowness = receipt.slowness
        return cls(
            receipt.rid,
            receipt.group,
            receipt.tenant,
            receipt.outcome or "live",
            receipt.finish_reason,
            receipt.code,
            receipt.received_ns,
            receipt.prompt_tokens,
            receipt.cached_tokens,
            receipt.completion_tokens,
            receipt.ttft_ns / 1e6 if receipt.first_token_ns else None,
            receipt.worst_gap_s * 1e3,
            last.prefill if last else "",
            last.decode if last else "",
            len(receipt.attempts),
            slowness.cause if slowness else None,
            round(slowness.ms, 3) if slowness else None,
        )

    def as_dict(self) -> dict[str, Any]:
        """The entry of `/v1/baton/requests`."""
        ttft_ms = self.ttft_ms
        return {
            "id": self.rid,
            "group": self.group,
            "received_ns": self.received_ns,
            "state": self.state,
            "finish_reason": self.finish_reason,
            "code": self.code,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "completion_tokens": self.completion_tokens,
            "ttft_ms": None if ttft_ms is None else round(ttft_ms, 3),
            "worst_gap_ms": round(self.worst_gap_ms, 3),
            "workers": {"prefill": self.prefill, "decode": self.decode},
            "attempts": self.num_attempts,
            "slow_because": self.slow_because,
            "slow_because_ms": self.slow_because_ms,
        }


@dataclass(frozen=True)
class RowFilter:
    """Which rows are asked for: the newest of all, or of those that one of the marks is on."""

    limit: int
    tenant: str | None = None
    """whose; None: everybody's"""
    failed: bool = False
    slow: bool = False
    """TTFT or worst gap among the slowest tenth of the requests that are kept"""
    retried: bool = False
    """tried more than once"""

    def choose(self, rows: Sequence[Row]) -> list[Row]:
        """Of rows in any order, at most `limit`, the newest first."""
        seen = [row for row in rows if self.tenant in (None, row.tenant)]
        seen.sort(key=lambda row: row.received_ns, reverse=True)
        return list(islice(self._marked(seen), self.limit))

    def _marked(self, rows: Sequence[Row]) -> Iterable[Row]:
        if not (self.failed or self.slow or self.retried):
            return rows
        ttft_ms = limit_of((row.ttft_ms for row in rows if row.ttft_ms is not None), SLOW_SHARE)
        gap_ms = limit_of((row.worst_gap_ms for row in rows if row.worst_gap_ms), SLOW_SHARE)
        return (
            row
            for row in rows
            if (self.failed and row.state == "failed")
            or (self.retried and row.num_attempts > 1)
            or (self.slow and ((row.ttft_ms or 0.0) > ttft_ms or row.worst_gap_ms > gap_ms))
        )
