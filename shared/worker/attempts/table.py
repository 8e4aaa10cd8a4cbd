"""What the io process knows of each attempt it holds: its gateway, its times, its progress."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from shared.link.server import Peer
from shared.message_parts.step_costs import StepCosts
from shared.protocol import ALONE_TOKENS, Assign, Attempt, Receive, TokenRun
from shared.queue.backlog import is_early
from shared.worker.channel import Scheduled

Mode = Literal["prefill", "local", "receive"]
"""a prompt to hand over, one to keep, one whose KV another worker computes"""


@dataclass(slots=True)
class Usage:
    """What an attempt used of this worker (`shared.worker.attempts.usage`). In ns, wall-clock."""

    step_ns: float = 0.0
    """of steps that computed it"""
    compute_ns: float = 0.0
    """its share of them"""
    crowded_ns: float = 0.0
    """that other sequences cost it"""
    stretched_ns: float = 0.0
    """that chunks of other prompts cost it"""
    kv_byte_ns: float = 0.0
    """bytes of its KV blocks times how long it had them"""
    kv_bytes: int = 0
    """of those that it has"""
    kv_since_ns: int = 0
    """until when they are counted"""
    num_kv_tokens: int = 0
    num_kv_positions: int = 0
    """that those blocks hold"""

    def count_kv(self, now_ns: int) -> None:
        """Up to this moment."""
        if self.kv_since_ns:
            self.kv_byte_ns += self.kv_bytes * max(0, now_ns - self.kv_since_ns)
            self.kv_since_ns = now_ns


@dataclass
class HeldAttempt:
    """One attempt on this worker. Times are wall-clock ns, 0 until they happen."""

    attempt: Attempt
    peer: Peer
    """the gateway that owns the request"""
    traceparent: str
    num_uncomputed_tokens: int
    """prompt tokens this worker still has to compute for it"""
    accepted_ns: int
    started_ns: int = 0
    num_cached_tokens: int = 0
    num_chunks: int = 0
    num_prefilled_tokens: int = 0
    first_token_ns: int = 0
    first_decode_ns: int = 0
    last_token_ns: int = 0
    num_decoded_tokens: int = 0
    mode: Mode = "prefill"
    source: str = ""
    """of its KV: a prefill worker's incarnation"""
    num_awaited_tokens: int = 0
    """places in blocks for the KV that comes from there"""
    chunk_ends_ns: list[int] = field(default_factory=list)
    sealed_ns: int = 0
    reserved_ns: int = 0
    """its blocks are taken, the pull may start"""
    adopted_ns: int = 0
    """its KV is here and verified, and the engine is told"""
    alone: bool = False
    """no step computes it together with others"""
    early: bool = True
    """as `shared.queue.backlog.is_early`"""
    near: bool = False
    """its KV is nearly here"""
    told_mark: tuple[int, ...] = ()
    """how far it was when its gateway was last told (`shared.worker.attempts.progress`)"""
    num_work_tokens: int = 0
    """of its prompt and of its answer by earlier attempts"""
    num_least_tokens: int = 0
    """that it asks this attempt for itself"""
    usage: Usage = field(default_factory=Usage)

    @classmethod
    def of(cls, message: Assign | Receive, peer: Peer, now_ns: int) -> "HeldAttempt":
        """New work of this gateway's."""
        work = message.work
        mode: Mode = message.mode if isinstance(message, Assign) else "receive"
        num_tokens = 0 if mode == "receive" else len(work.token_ids)
        facts = (work.attempt, peer, work.traceparent, num_tokens, now_ns)
        held = cls(*facts, mode=mode, alone=work.alone, early=is_early(work.priority))
        held.num_work_tokens = len(work.token_ids)
        num_earlier = len(work.token_ids) - work.num_prompt_tokens
        held.num_least_tokens = max(0, work.sampling.least_tokens - num_earlier)
        return held

    @property
    def num_tokens(self) -> int:
        """What whoever goes on with it has to compute, about: its prompt and its answer so far."""
        return self.num_uncomputed_tokens + self.num_awaited_tokens + self.num_decoded_tokens

    @property
    def num_left_tokens(self) -> int:
        """Of its answer, at the least."""
        return max(0, self.num_least_tokens - self.num_decoded_tokens)

    @property
    def may_be_computed(self) -> bool:
        """A step of several may compute it now; one whose KV is nearly here begins ahead of the
        verdict on it."""
        if self.alone and self.num_decoded_tokens < ALONE_TOKENS:
            return False
        return self.stage in ("prefill", "decode") or (self.stage == "transfer" and self.near)

    @property
    def stage(self) -> str:
        """Where it is now, as the queue-stage gauges call it."""
        if self.mode == "receive":
            if self.adopted_ns:
                return "decode"
            return "transfer" if self.reserved_ns else "reserve"
        if self.sealed_ns:
            return "held"
        if self.first_token_ns:
            return "decode"
        return "prefill" if self.started_ns else "queued"


class AttemptTable:
    """Attempts by id. A higher epoch of a request replaces a lower one."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, int], HeldAttempt] = {}
        self._epoch: dict[str, int] = {}
        self.num_dropped = 0
        """so far"""

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[HeldAttempt]:
        return iter(list(self._held.values()))

    def shortest_first(self) -> list[HeldAttempt]:
        """Those that are soonest computed again somewhere else first."""
        return sorted(self, key=lambda held: held.num_tokens)

    def __getitem__(self, attempt: Attempt) -> HeldAttempt:
        return self._held[attempt]

    def get(self, attempt: tuple[str, int]) -> HeldAttempt | None:
        return self._held.get(attempt)

    def is_stale(self, attempt: Attempt) -> bool:
        """A same or higher epoch of the request is held already."""
        return self._epoch.get(attempt.rid, -1) >= attempt.epoch

    def superseded_by(self, attempt: Attempt) -> HeldAttempt | None:
        """The lower epoch that this one replaces, if it is held."""
        epoch = self._epoch.get(attempt.rid, -1)
        if epoch < 0 or epoch >= attempt.epoch:
            return None
        return self._held.get(Attempt(attempt.rid, epoch))

    def hold(self, held: HeldAttempt) -> None:
        assert not self.is_stale(held.attempt)
        self._held[held.attempt] = held
        self._epoch[held.attempt.rid] = held.attempt.epoch

    def drop(self, attempt: Attempt) -> HeldAttempt | None:
        """Forget it; None if it was not held."""
        held = self._held.pop(attempt, None)
        self.num_dropped += held is not None
        if held is not None and self._epoch.get(attempt.rid) == attempt.epoch:
            del self._epoch[attempt.rid]
        return held

    def of_peer(self, peer: Peer) -> list[HeldAttempt]:
        return [held for held in self._held.values() if held.peer is peer]

    def note_near(self, attempt: Attempt) -> None:
        """Its KV is nearly here."""
        held = self._held.get(attempt)
        if held is not None:
            held.near = True

    def start(self, event: Scheduled) -> list[HeldAttempt]:
        """Note whose first chunk is scheduled; those of them that had not started before."""
        started = []
        for attempt, num_cached in event.started:
            held = self._held.get(attempt)
            if held is not None and not held.started_ns:
                held.started_ns = event.start_ns
                held.num_cached_tokens = num_cached
                held.num_uncomputed_tokens -= num_cached
                started.append(held)
        return started

    def with_runs(self, runs: Iterable[TokenRun]) -> list[tuple[HeldAttempt, TokenRun]]:
        """Each run with its attempt; without those that are not held any more."""
        found = ((self._held.get(run.attempt), run) for run in runs)
        return [(held, run) for held, run in found if held is not None]

    def note_chunks(self, chunks: Iterable[tuple[Attempt, int]], end_ns: int) -> None:
        """A step computed these numbers of prompt tokens; after a preemption some for the second
        time."""
        for attempt, num_tokens in chunks:
            held = self._held.get(attempt)
            if held is not None:
                held.num_chunks += 1
                held.num_prefilled_tokens += num_tokens
                held.num_uncomputed_tokens = max(0, held.num_uncomputed_tokens - num_tokens)
                held.chunk_ends_ns.append(end_ns)

    def num_by_stage(self) -> dict[str, int]:
        """Attempts held, by stage; stages without any are left out."""
        return dict(Counter(held.stage for held in self._held.values()))

    def unstarted(self) -> Iterator[tuple[int, bool]]:
        """Of each attempt whose first chunk is not scheduled yet its prompt tokens, and whether it
        is early."""
        unstarted = (held for held in self._held.values() if not held.started_ns)
        return ((held.num_uncomputed_tokens, held.early) for held in unstarted)

    @property
    def unreserved_tokens(self) -> dict[str, int]:
        """Tokens whose KV lacks blocks here, by its source."""
        tokens: dict[str, int] = {}
        for held in self._held.values():
            if held.num_awaited_tokens and not held.reserved_ns:
                tokens[held.source] = tokens.get(held.source, 0) + held.num_awaited_tokens
        return tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        return sum(h.num_uncomputed_tokens for h in self._held.values())

    def queued_s(self, costs: StepCosts) -> float:
        """Seconds that `num_uncomputed_tokens` add to the steps of an engine with these costs."""
        return sum(
            costs.prompt_s(held.num_work_tokens, held.num_work_tokens - held.num_uncomputed_tokens)
            for held in self._held.values()
            if held.num_uncomputed_tokens
        )
