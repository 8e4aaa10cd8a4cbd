"""What each pair of workers handed over, as its decode worker told it."""

from dataclasses import dataclass
from typing import Any

from shared.message_parts.span import Span
from shared.telemetry import attributes as names

MAX_PAIRS = 1024
"""remembered; the one longest without a hand-over is forgotten first"""


@dataclass
class _Pair:
    num: int = 0
    num_bytes: int = 0
    transport: str = ""
    why: str = ""
    timed_bytes: int = 0
    busy_s: float = 0.0
    """in which those came"""
    link_gb_s: float = 0.0

    @property
    def gb_s(self) -> float | None:
        seen_gb_s = self.timed_bytes / self.busy_s / 1e9 if self.busy_s else None
        return self.link_gb_s or seen_gb_s


class HandOvers:
    """Of one gateway, since its start."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[str, str], _Pair] = {}

    def note(self, prefill: str, decode: str, span: Span) -> None:
        """One more, with the span that the decode worker cut of it."""
        pair = self._pairs.pop((prefill, decode), None) or _Pair()
        self._pairs[prefill, decode] = pair
        told = span.attributes
        pair.num += 1
        num_bytes = int(told.get(names.TRANSFER_BYTES, 0))
        busy_ms = told.get(names.TRANSFER_BUSY_MS)
        pair.num_bytes += num_bytes
        if busy_ms is not None:  # a release before says nothing of it
            pair.timed_bytes += num_bytes
            pair.busy_s += float(busy_ms) / 1e3
        pair.transport = str(told.get(names.TRANSFER_TRANSPORT, ""))
        pair.why = str(told.get(names.TRANSFER_WHY, ""))
        pair.link_gb_s = float(told.get(names.TRANSFER_LINK_GBPS, 0.0)) or pair.link_gb_s
        if len(self._pairs) > MAX_PAIRS:
            del self._pairs[next(iter(self._pairs))]

    def status(self) -> list[dict[str, Any]]:
        """An entry for each pair, by name. Transport and reason are those of its latest. The rate
        is that of the latest that kept the link full; as long as none has, that of all, which
        small ones make low; null if nothing moved."""
        return [
            {
                "prefill": prefill,
                "decode": decode,
                "transport": pair.transport,
                "why": pair.why,
                "gb_per_s": pair.gb_s,
                "num": pair.num,
                "bytes": pair.num_bytes,
            }
            for (prefill, decode), pair in sorted(self._pairs.items())
        ]
