"""The body of `/v1/baton/live`: this gateway and its workers, now and in the last minute.

`turn` is a loop's, once a second, whether somebody looks or not: it notes what would be gone.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Protocol

from services.gateway.owner.identity import GatewayIdentity
from services.gateway.owner.links.worker_link import WorkerLink
from services.gateway.owner.links.worker_links import WorkerLinks
from services.gateway.owner.live_request import LiveRequest
from services.gateway.owner.records.journal import Journal
from services.gateway.owner.records.receipt import STAGES, Stage
from services.gateway.owner.requests import Requests
from services.gateway.owner.view.changes import FIRST, Changes
from services.gateway.owner.view.looks import Look, Looks, gap_quantiles
from services.gateway.owner.view.recent import WINDOW_S
from shared.clock import Clock
from shared.state.notes.scaling import Scaling
from shared.telemetry.metrics import OUTCOMES

LOOK_INTERVAL_S = 1.0


def stage_of(live: LiveRequest) -> Stage:
    """Where it is, in the words of the critical path."""
    machine = live.machine
    if machine.active and not machine.started:
        return "queue"
    if len(machine.token_ids) == live.num_earlier_tokens:
        return "prefill"
    handed_over = machine.mode == "local" or machine.decode_spoke
    return "decode" if handed_over or not machine.active else "handover"


class Standing(Protocol):
    """How the gateway fares, as it tells its probes."""

    def store_state(self) -> str:
        """How Redis is, as far as it knows."""

    def trouble(self) -> str:
        """What fails; nothing when all is well."""


class LiveView:
    """Everything is read where it is kept, on the event loop."""

    def __init__(
        self,
        identity: GatewayIdentity,
        requests: Requests,
        links: WorkerLinks,
        journal: Journal,
        clock: Clock,
        standing: Standing,
    ) -> None:
        self._identity = identity
        self._requests = requests
        self._links = links
        self._journal = journal
        self._clock = clock
        self._standing = standing
        self._start_s = clock.monotonic_s()
        self.scaling: Scaling | None = None
        """what the autoscaler last decided, set by whoever asks"""
        self._minute = Looks(WINDOW_S, 0.0)
        self._hour = Looks(3600.0, 60.0)
        self._changes = Changes(links.events)

    async def turn(self) -> None:
        """One look at what changes without a word, and at totals."""
        now_s = self._clock.monotonic_s()
        look = self._look(now_s)
        self._minute.note(look)
        self._hour.note(look)
        self._note_missing_tokens(now_s)
        drains = {
            worker.incarnation: (worker.worker_id, worker.drains)
            for worker in self._links.workers()
        }
        self._changes.look(drains, self._standing.store_state(), self._journal.counters.attempts)

    def body(self) -> dict[str, Any]:
        """All of it, for JSON."""
        now_s, identity = self._clock.monotonic_s(), self._identity
        lives = self._requests.all()
        stages = Counter(map(stage_of, lives))
        now = self._look(now_s)
        minute = self._minute.growth(now)
        return {
            "now_ns": self._clock.wall_ns(),
            "version": identity.version,
            "model": identity.model,
            "topology": identity.topology,
            "gateway": identity.gateway_incarnation.partition(".")[0],
            "uptime_s": round(now_s - self._start_s, 1),
            "redis": self._standing.store_state(),
            "trouble": self._standing.trouble(),
            "requests": {
                "live": len(lives),
                **self._waiting(lives),
                "stages": {stage: stages[stage] for stage in STAGES},
            },
            "last_minute": {
                "ttft_ms": self._journal.recent_ttft_ms.told(now_s),
                "gap_ms": gap_quantiles(minute.gaps, self._journal.attainment.gaps.bounds),
                "stages_ms": self._journal.recent_stages_ms.told(now_s),
                **minute.counts,
            },
            "since_start": dict(now.counts),
            "objectives": self._objectives(minute, self._hour.growth(now)),
            "workers": self._workers(now_s),
            "hand_overs": self._hand_overs(lives),
            "autoscaler": None if self.scaling is None else asdict(self.scaling),
            "events": self._links.events.told(),
        }

    def _look(self, now_s: float) -> Look:
        counters = self._journal.counters
        counts = {outcome: counters.requests[outcome] for outcome in OUTCOMES}
        counts["refused"] = sum(counters.refused.values())
        counts["retried"] = sum(counters.attempts.values()) - counters.attempts[FIRST]
        attainment = self._journal.attainment
        return Look(now_s, counts, attainment.gaps.counts(), attainment.kept())

    def _objectives(self, minute: Look, hour: Look) -> dict[str, Any]:
        """What users are to wait at most, and how often that was kept."""
        return {
            name: {
                "limit_ms": limit_s * 1e3,
                "last_minute": minute.kept[name]._asdict(),
                "last_hour": hour.kept[name]._asdict(),
            }
            for name, limit_s in self._journal.attainment.limits_s.items()
        }

    def _note_missing_tokens(self, now_s: float) -> None:
        """A worker that stands still sends no frame that would tell."""
        for live in self._requests.all():
            worker = self._links.get(live.machine.decode_incarnation)
            if worker is not None and live.machine.active and live.machine.token_ids:
                worker.gaps.note_missing(now_s, now_s - live.timing.last_token_s)

    def _waiting(self, lives: Iterable[LiveRequest]) -> dict[str, Any]:
        """Those without a worker, and since when the oldest has none."""
        since_ns = [waits_since_ns(live) for live in lives if live.machine.waits]
        oldest_ns = self._clock.wall_ns() - min(since_ns) if since_ns else 0
        return {"waiting": len(since_ns), "oldest_wait_s": round(max(oldest_ns, 0) / 1e9, 3)}

    def _workers(self, now_s: float) -> list[dict[str, Any]]:
        entries = [
            {**worker.status(suspect=suspect), **_queue(worker), **_gaps(worker, now_s)}
            for worker, suspect in self._links.shown()
        ]
        return sorted(entries, key=lambda entry: (entry["role"] != "prefill", entry["id"]))

    def _hand_overs(self, lives: Iterable[LiveRequest]) -> list[dict[str, Any]]:
        """By pair, with those of now."""
        now = Counter(
            (note.prefill, note.decode)
            for live in lives
            if stage_of(live) == "handover"
            for note in live.receipt.attempts[-1:]
        )
        return [
            {**pair, "in_flight": now[pair["prefill"], pair["decode"]]}
            for pair in self._journal.hand_overs.status()
        ]


def waits_since_ns(live: LiveRequest) -> int:
    """Its acceptance, or the end of the attempt before."""
    attempts = live.receipt.attempts
    return attempts[-1].ended_ns if attempts else live.receipt.accepted_ns


def _queue(worker: WorkerLink) -> dict[str, Any]:
    """Prompt tokens it has to compute, and how long that takes it."""
    view = worker.view
    return {"queued_tokens": view.queued_tokens, "queued_s": round(view.queued_s, 3)}


def _gaps(worker: WorkerLink, now_s: float) -> dict[str, Any]:
    return {"gaps_ms": worker.gaps.last_ms(now_s)} if worker.hello.role == "decode" else {}
