"""What a Baton gateway measured of the same run, from its /metrics: to compare with our own."""

import os
import re
import urllib.request
from dataclasses import dataclass

TTFT = "baton_time_to_first_token_seconds"
GAP = "baton_inter_token_latency_seconds"
TIMEOUT_S = 5.0
KEY_VARIABLE = "BATON_API_KEY"


@dataclass(frozen=True)
class Total:
    """Sum and count of a histogram."""

    sum_s: float = 0.0
    count: float = 0.0

    def since(self, before: "Total") -> "Total":
        return Total(self.sum_s - before.sum_s, self.count - before.count)

    @property
    def mean_ms(self) -> float | None:
        return 1000 * self.sum_s / self.count if self.count else None


def key_headers() -> dict[str, str]:
    """Of every request; empty where no API key is set."""
    key = os.environ.get(KEY_VARIABLE)
    return {"authorization": f"Bearer {key}"} if key else {}


def read_totals(url: str) -> dict[str, Total]:
    """By metric name; empty if the server is no Baton gateway or does not answer."""
    try:
        request = urllib.request.Request(f"{url}/metrics", headers=key_headers())  # noqa: S310
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:  # noqa: S310
            text = response.read().decode()
    except (OSError, ValueError):
        return {}
    return parse_totals(text)


def parse_totals(text: str) -> dict[str, Total]:
    """The two histograms in a Prometheus exposition, where it has them."""
    totals = {}
    for name in (TTFT, GAP):
        parts = [
            re.search(rf"^{name}_{part}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
            for part in ("sum", "count")
        ]
        if all(parts):
            totals[name] = Total(*(float(part[1]) for part in parts if part))
    return totals
