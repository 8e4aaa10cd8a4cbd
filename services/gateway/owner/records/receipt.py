"""What happened to one request: for support, for the demo's waterfall, for tests."""

import asyncio
import os
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any, Literal

from services.gateway.owner.machine.effects import Outcome
from services.gateway.owner.records.gpu_time import used_gpu_ms
from services.gateway.owner.records.slowness import Slowness, measured, slow_parts, slowness_of
from shared.message_parts.span import Span
from shared.protocol import DEFAULT_PRIORITY
from shared.telemetry import attributes as names

MAX_SPANS = 256
"""kept of one request"""

Stage = Literal["queue", "prefill", "handover", "decode"]
STAGES: tuple[Stage, ...] = ("queue", "prefill", "handover", "decode")
"""of an attempt, in the order in which it goes through them"""
_STAGES = ("earlier_attempts", *STAGES)
_GATEWAY = "gateway"
_NOTABLE_WAIT_NS = 1_000_000
_SPAN_FIELDS = tuple(each.name for each in fields(Span))


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
    queued_ns: int = 0
    """accepted, or the end of the attempt before"""
    assigned_ns: int = 0
    started_ns: int = 0
    first_token_ns: int = 0
    last_token_ns: int = 0
    """the request's last one, where another attempt followed; 0: it had none"""
    ended_ns: int = 0

    def finish(self, end: str, now_ns: int) -> None:
        self.end, self.ended_ns = end, now_ns


@dataclass
class Receipt:
    """Facts of one request. Times are wall-clock nanoseconds, 0 = not yet."""

    rid: str
    endpoint: str
    prompt_tokens: int
    received_ns: int
    accepted_ns: int
    tenant: str = ""
    started_ns: int = 0
    """the START that token 0 came from"""
    first_token_ns: int = 0
    """token 0 arrived at the gateway"""
    admitted: bool = False
    """its client may have what arrives"""
    ended_ns: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    worst_gap_s: float = 0.0
    """between two tokens, as they arrived at the gateway"""
    outcome: Outcome | None = None
    finish_reason: str = ""
    code: str = ""
    waited: str = ""
    """why it had to wait for a worker: no_worker, no_room or retry_budget"""
    attempts: list[AttemptNote] = field(default_factory=list)
    spans: list[tuple[int, str, Span]] = field(default_factory=list)
    """(epoch, worker id, span) as the workers reported them"""
    ranks: dict[str, int] = field(default_factory=dict)
    """worker id -> GPUs that compute its steps together; 0: not known"""
    saved_gpu_ms: float | None = None
    """GPU time that the cached tokens would have taken, by the worker that had them; None: its
    costs are not known"""
    group: str = ""
    """id of the HTTP request whose answer has several choices, this among them"""
    choice: int = 0
    """its index there"""
    prompt: int = 0
    """which of the HTTP request's prompts it continues"""
    priority: int = DEFAULT_PRIORITY
    stages_noted: bool = False
    """its stages are among those of the last minute"""
    told: asyncio.Event | None = None
    """set when `complete` turns true, for whoever waits for that"""
    num_told: int = 0
    """spans that workers told, each time"""
    slowness_then: tuple[int, Slowness | None] | None = None
    """what it was slow by after that many: pages ask for that of the latest each second"""

    def note(self, epoch: int, worker: str, span: Span) -> None:
        """A worker's span; it replaces what was said before of the same stage."""
        self.num_told += 1
        for place, (known_epoch, known_worker, known) in enumerate(self.spans):
            if (known_epoch, known_worker, known.name) == (epoch, worker, span.name):
                self.spans[place] = (epoch, worker, span)
                return
        if len(self.spans) < MAX_SPANS:
            self.spans.append((epoch, worker, span))
        if self.told is not None and self.complete:
            self.told.set()

    def prefill_of(self, epoch: int) -> str:
        """The worker that an attempt's prompt was given to."""
        return next((each.prefill for each in self.attempts if each.epoch == epoch), "")

    @property
    def ttft_ns(self) -> int:
        """From the receipt of the request to its first token; 0 while there is none."""
        return self.first_token_ns - self.received_ns if self.first_token_ns else 0

    @property
    def complete(self) -> bool:
        """It has ended, and workers have told what its critical path is made of."""
        if not self.ended_ns or not self.attempts:
            return bool(self.ended_ns)
        last = self.attempts[-1]
        if not last.first_token_ns:
            return True
        needed = [names.SPAN_PREFILL]
        if last.mode == "prefill" and last.decode and self.completion_tokens > 1:
            needed += [names.SPAN_TRANSFER, names.SPAN_DECODE]
        return all(self.span(name, last.epoch) is not None for name in needed)

    def own_spans(self) -> list[tuple[int, str, Span]]:
        """The stages that happen in the gateway: reading the request, and waiting for a worker
        where there was none with room."""
        own = [(0, Span(names.SPAN_READ, self.received_ns, self.accepted_ns, os.getpid()))]
        for attempt in self.attempts:
            if attempt.assigned_ns - attempt.queued_ns > _NOTABLE_WAIT_NS:
                times = (attempt.queued_ns, attempt.assigned_ns)
                own.append((attempt.epoch, Span(names.SPAN_QUEUE, *times, os.getpid())))
        return [(epoch, _GATEWAY, span) for epoch, span in own]

    def span(self, name: str, epoch: int | None = None) -> Span | None:
        """The last span of that name, of one epoch or of any."""
        for span_epoch, _, span in reversed(self.spans):
            if span.name == name and epoch in (None, span_epoch):
                return span
        return None

    def critical_path_ms(self) -> dict[str, float]:
        """The request's time cut into stages that add up to it exactly; {} while it lives.

        queue: accepted -> first chunk scheduled. prefill: -> token 1 here. handover: -> the
        first decode step begins. decode: -> the recorded end. They are those of the attempt
        that ended the request; `earlier_attempts`, if there were any, is what came before it,
        and `other` is what no stage has: reading the request, before it was accepted."""
        if not self.ended_ns:
            return {}
        cuts = [self.accepted_ns]
        for cut_ns in self._stage_ends_ns():
            cuts.append(min(max(cut_ns, cuts[-1]), self.ended_ns))
        path = {
            stage: end - begin for stage, (begin, end) in zip(_STAGES, pairwise(cuts), strict=True)
        }
        if len(self.attempts) <= 1:
            path["queue"] += path.pop("earlier_attempts")
        total = self.ended_ns - self.received_ns
        path["other"] = total - sum(path.values())
        path["total"] = total
        return {stage: value / 1e6 for stage, value in path.items()}

    def _stage_ends_ns(self) -> tuple[int, ...]:
        """Where each of _STAGES ends, if it was reached."""
        end_ns = self.ended_ns
        if not self.attempts:
            return (self.accepted_ns, end_ns, end_ns, end_ns, end_ns)
        last = self.attempts[-1]
        prefill = self.span(names.SPAN_PREFILL, last.epoch)
        decode = self.span(names.SPAN_DECODE, last.epoch)
        start_ns = prefill.start_ns if prefill else last.started_ns or end_ns
        token_ns = last.first_token_ns or end_ns
        handed_over = decode is not None and last.mode == "prefill"
        decode_ns = decode.start_ns if handed_over and decode else token_ns
        return (last.queued_ns, start_ns, token_ns, decode_ns, end_ns)

    def overlapped_ms(self) -> float:
        """The part of the last hand-over that ran during prefill and so cost no time."""
        transfer = self.span(names.SPAN_TRANSFER)
        if transfer is None or not self.attempts:
            return 0.0
        token_ns = self.attempts[-1].first_token_ns
        return max(0, min(token_ns, transfer.end_ns) - transfer.start_ns) / 1e6

    @property
    def slowness(self) -> Slowness | None:
        """What an answer that has ended was slow by; None: by nothing, or it has no token."""
        if not (self.ended_ns and self.first_token_ns):
            return None
        if self.slowness_then is None or self.slowness_then[0] != self.num_told:
            self.slowness_then = self.num_told, self._slowness()
        return self.slowness_then[1]

    def _slowness(self) -> Slowness | None:
        path_ms = self.critical_path_ms()
        last, silent_ms = self.attempts[-1], None
        since_ns = self.attempts[-2].last_token_ns if len(self.attempts) > 1 else 0
        if since_ns:
            silent_ms = max(0, (last.first_token_ns or self.ended_ns) - since_ns) / 1e6
        spans = [span for epoch, _, span in self.spans if epoch == last.epoch]
        return slowness_of(slow_parts(path_ms, spans, silent_ms), path_ms["total"])

    def used(self, name: str) -> float | None:
        """Of all attempts, as their workers told; None: none did."""
        told = [span for _, _, span in self.spans if name in span.attributes]
        return round(sum(measured(span, name) for span in told), 3) if told else None

    @property
    def gpu_ms(self) -> float | None:
        """As `compute_ms`, a worker of several GPUs counted with each; None until it has ended, and
        where that is not known."""
        if not self.complete:
            return None
        told = [(worker, span) for _, worker, span in self.spans]
        return used_gpu_ms(told, self.ranks, self.completion_tokens)

    def as_dict(self) -> dict[str, Any]:
        """The body of `/v1/baton/requests/{id}`."""
        transfer = self.span(names.SPAN_TRANSFER)
        moved = transfer.attributes if transfer else {}
        slowness = self.slowness
        return {
            "id": self.rid,
            "group": self.group,
            "choice": self.choice,
            "prompt": self.prompt,
            "endpoint": self.endpoint,
            "tenant": self.tenant,
            "priority": self.priority,
            "state": self.outcome or "live",
            "finish_reason": self.finish_reason,
            "code": self.code,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "completion_tokens": self.completion_tokens,
            "received_ns": self.received_ns,
            "accepted_ns": self.accepted_ns,
            "started_ns": self.started_ns,
            "first_token_ns": self.first_token_ns,
            "ended_ns": self.ended_ns,
            "worst_gap_ms": round(self.worst_gap_s * 1e3, 3),
            "waited": self.waited,
            "route": self.attempts[-1].route if self.attempts else "",
            "workers": self._workers(),
            "attempts": [dict(vars(attempt)) for attempt in self.attempts],
            "transport": moved.get(names.TRANSFER_TRANSPORT, ""),
            "transport_chosen_because": moved.get(names.TRANSFER_WHY, ""),
            "bytes": moved.get(names.TRANSFER_BYTES, 0),
            "blocks": moved.get(names.TRANSFER_BLOCKS, 0),
            "stages": [
                {**_plain(span), "epoch": epoch, "worker": worker}
                for epoch, worker, span in sorted(
                    [*self.own_spans(), *self.spans], key=lambda item: item[2].start_ns
                )
            ],
            "slow_because": slowness.cause if slowness else None,
            "slow_because_ms": round(slowness.ms, 3) if slowness else None,
            "slow_because_share": round(slowness.share, 3) if slowness else None,
            "compute_ms": self.used(names.COMPUTE_MS),
            "kv_byte_seconds": self.used(names.KV_BYTE_SECONDS),
            "gpu_ms": self.gpu_ms,
            "saved_gpu_ms": self.saved_gpu_ms if self.first_token_ns else None,
            "critical_path_ms": self.critical_path_ms(),
            "handover_overlapped_ms": self.overlapped_ms(),
        }

    def _workers(self) -> dict[str, str]:
        if not self.attempts:
            return {}
        last = self.attempts[-1]
        pair = {"prefill": last.prefill, "decode": last.decode}
        return {role: worker for role, worker in pair.items() if worker}


def _plain(span: Span) -> dict[str, Any]:
    """Its fields; `asdict`, which copies them too, takes ten times as long."""
    return {name: getattr(span, name) for name in _SPAN_FIELDS}
