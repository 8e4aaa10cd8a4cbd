"""What the answers of a run cost, and what the prefix cache saved, by their receipts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from services.cli.bench.serve.sample import RequestSample
from shared.telemetry.cost import usd_of


@dataclass(frozen=True)
class Cost:
    """Sums over the answers whose receipts tell both times. GPUs that wait for work are not in
    them."""

    num_told: int
    num_answers: int
    usd: float
    saved_usd: float

    @classmethod
    def of(cls, answers: Sequence[RequestSample], usd_per_gpu_hour: float) -> "Cost":
        times_ms = [
            (answer.gpu_ms, answer.saved_gpu_ms)
            for answer in answers
            if answer.gpu_ms is not None and answer.saved_gpu_ms is not None
        ]
        used_ms, saved_ms = (sum(each) for each in zip((0.0, 0.0), *times_ms, strict=True))
        return cls(
            len(times_ms),
            len(answers),
            usd_of(used_ms, usd_per_gpu_hour),
            usd_of(saved_ms, usd_per_gpu_hour),
        )

    @property
    def saved_share(self) -> float | None:
        """Of what they would have cost without the prefix cache."""
        whole = self.usd + self.saved_usd
        return self.saved_usd / whole if whole else None

    @property
    def text(self) -> str:
        """A line of the report."""
        if not self.num_told:
            return "not known: no answer has a receipt that tells its GPU time"
        share = f" ({self.saved_share:.1%} of what there was to pay)" if self.saved_share else ""
        return (
            f"{self.usd:.4g} USD of GPU time for {self.num_told} of {self.num_answers} answers; "
            f"the prefix cache saved {self.saved_usd:.4g} USD{share}"
        )

    def record(self) -> dict[str, Any]:
        """Its part of the JSON line."""
        known = bool(self.num_told)
        return {
            "num_told": self.num_told,
            "usd": round(self.usd, 9) if known else None,
            "saved_usd": round(self.saved_usd, 9) if known else None,
        }
