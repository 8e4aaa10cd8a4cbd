"""What happened to each of the last requests: for support, for the demo's waterfall, for tests."""

from collections import OrderedDict
from dataclasses import asdict, dataclass, field
from typing import Any

from services.gateway.effects import Outcome
from shared.protocol import Span
from shared.telemetry import attributes as names

MAX_RECEIPTS = 1000


@dataclass
class AttemptNote:
    """One epoch: where it went and how it ended."""

    epoch: int
    mode: str
    reason: str
    route: str
    prefill: str = ""
    """worker ids"""
    decode: str = ""
    end: str = ""


@dataclass
class Receipt:
    """Facts of one request. Times are wall-clock nanoseconds, 0 = not yet."""

    rid: str
    endpoint: str
    prompt_tokens: int
    received_ns: int
    accepted_ns: int
    started_ns: int = 0
    """the START that token 0 came from"""
    first_token_ns: int = 0
    """token 0 arrived at the gateway"""
    ended_ns: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    outcome: Outcome | None = None
    code: str = ""
    waited: str = ""
    """why it had to wait for a worker: no_worker or no_room"""
    first_epoch: int = 0
    attempts: list[AttemptNote] = field(default_factory=list)
    spans: list[tuple[int, str, Span]] = field(default_factory=list)
    """(epoch, worker id, span) as the workers reported them"""

    def span(self, name: str, epoch: int | None = None) -> Span | None:
        """The last span of that name, of one epoch or of any."""
        for span_epoch, _, span in reversed(self.spans):
            if span.name == name and epoch in (None, span_epoch):
                return span
        return None

    def critical_path_ms(self) -> dict[str, float]:
        """The request's time cut into stages that add up to it; `other` is what no stage has.

        queue: accepted -> first chunk scheduled. prefill: -> token 1 here. handover: -> the
        first decode step begins. decode: -> end."""
        if not self.ended_ns or not self.first_token_ns:
            return {}
        prefill = self.span(names.SPAN_PREFILL, self.first_epoch)
        decode = self.span(names.SPAN_DECODE, self.first_epoch)
        start_ns = prefill.start_ns if prefill else self.started_ns or self.first_token_ns
        decode_ns = max(decode.start_ns if decode else 0, self.first_token_ns)
        cuts = (self.accepted_ns, start_ns, self.first_token_ns, decode_ns, self.ended_ns)
        stages = ("queue", "prefill", "handover", "decode")
        path = {
            stage: max(end_ns - begin_ns, 0) / 1e6
            for stage, begin_ns, end_ns in zip(stages, cuts, cuts[1:], strict=False)
        }
        total_ms = (self.ended_ns - self.received_ns) / 1e6
        path["other"] = total_ms - sum(path.values())
        path["total"] = total_ms
        return {stage: round(value_ms, 3) for stage, value_ms in path.items()}

    def as_dict(self) -> dict[str, Any]:
        """The body of `/v1/baton/requests/{id}`."""
        transfer = self.span(names.SPAN_TRANSFER)
        moved = transfer.attributes if transfer else {}
        return {
            "id": self.rid,
            "endpoint": self.endpoint,
            "state": self.outcome or "live",
            "code": self.code,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "completion_tokens": self.completion_tokens,
            "received_ns": self.received_ns,
            "accepted_ns": self.accepted_ns,
            "started_ns": self.started_ns,
            "first_token_ns": self.first_token_ns,
            "ended_ns": self.ended_ns,
            "waited": self.waited,
            "route": self.attempts[-1].route if self.attempts else "",
            "workers": self._workers(),
            "attempts": [asdict(attempt) for attempt in self.attempts],
            "transport": moved.get(names.TRANSFER_TRANSPORT, ""),
            "bytes": moved.get(names.TRANSFER_BYTES, 0),
            "blocks": moved.get(names.TRANSFER_BLOCKS, 0),
            "stages": [
                {**asdict(span), "epoch": epoch, "worker": worker}
                for epoch, worker, span in sorted(self.spans, key=lambda item: item[2].start_ns)
            ],
            "critical_path_ms": self.critical_path_ms(),
        }

    def _workers(self) -> dict[str, str]:
        if not self.attempts:
            return {}
        last = self.attempts[-1]
        pair = {"prefill": last.prefill, "decode": last.decode}
        return {role: worker for role, worker in pair.items() if worker}


class Receipts:
    """The last thousand, by rid."""

    def __init__(self, max_receipts: int = MAX_RECEIPTS) -> None:
        self._max_receipts = max_receipts
        self._by_rid: OrderedDict[str, Receipt] = OrderedDict()

    def add(self, receipt: Receipt) -> None:
        self._by_rid[receipt.rid] = receipt
        if len(self._by_rid) > self._max_receipts:
            self._by_rid.popitem(last=False)

    def get(self, rid: str) -> Receipt | None:
        return self._by_rid.get(rid)
