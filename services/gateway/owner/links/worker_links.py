"""Keeps a link to every worker the registry lists, and notices when one is gone.

The registry is polled; while Redis is away its last answer stands, so links and the streams on
them go on. A worker whose link closes, or brings no frame for three seconds, is suspect at once:
its requests learn of it, and it is dialled again as long as it is listed. What a worker says on its
link counts for more than what the registry says of it.
"""

import logging
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Protocol

from services.gateway.owner.links.lost_workers import LostWorkers
from services.gateway.owner.links.served_pool import ServedPool
from services.gateway.owner.links.unlinked import Unlinked
from services.gateway.owner.links.worker_link import OpenLink, WorkerLink
from services.gateway.owner.links.worker_view import Pace, WorkerView
from services.gateway.owner.view.events import Events
from shared.challenge import purpose_key
from shared.clock import Clock
from shared.errors import PeerLostError, ProtocolError
from shared.link.link import Link
from shared.loops import Loops
from shared.process import worker_id_of
from shared.protocol import MAX_LIVE_ATTEMPTS, Attempt, Hello, Message, Ping, Pong
from shared.settings.groups import Topology
from shared.state.registry import POLL_INTERVAL_S, WorkerEntry, WorkerRegistry
from shared.tasks import Tasks
from shared.telemetry.worker_metrics import WorkerSample

logger = logging.getLogger(__name__)

PING_INTERVAL_S = 0.5
MAX_UNANSWERED_PINGS = 6
REDIAL_INTERVAL_S = 0.25
SUSPECT_S = 2.5
"""how long a lost worker is still shown, as suspect"""
PREFILL_WAIT_S = 60.0
"""for the first prefill worker of a pool that shall have one: it may be loading its model"""

Dial = Callable[
    [str, int, Hello, Callable[[Any, Message], None], Callable[[Any], None]], Awaitable[OpenLink]
]


class LinkUser(Protocol):
    """The owner of the requests sent over the links; all calls come from the event loop."""

    def live_attempts(self, incarnation: str) -> tuple[Attempt, ...]:
        """Attempts still owned on a worker; it drops all others of this gateway."""

    def may_change_pool(self) -> bool:
        """Nothing is under way that another pool might go on with differently."""

    def receive(self, worker: WorkerLink, message: Message) -> None:
        """One frame; its load is noted already."""

    def worker_up(self, worker: WorkerLink) -> None:
        """A worker is linked."""

    def worker_lost(self, worker: WorkerLink) -> None:
        """Its link is gone."""

    def num_backlogged(self, worker: WorkerLink) -> int:
        """Requests of this gateway in the backlog that this worker may pop."""


class WorkerLinks:
    """Links by incarnation. `start` once, `close` once."""

    def __init__(
        self,
        registry: WorkerRegistry,
        served: ServedPool,
        gateway_incarnation: str,
        clock: Clock,
        dial: Dial = Link.dial,
    ) -> None:
        self.views: list[WorkerView] = []
        """of all linked workers, for the router"""
        self.registry_answers = False
        self.events = Events(clock)
        self.lost_at_s: float | None = None
        """when the last link was lost"""
        self._registry = registry
        self._served = served
        self._gateway_incarnation = gateway_incarnation
        self._clock = clock
        self._dial = dial
        self._user: LinkUser | None = None
        self._prefill_seen = False
        """the pool has had a prefill worker since this gateway started"""
        self._first_linked_s: float | None = None
        self._workers: dict[str, WorkerLink] = {}
        self._by_link: dict[Any, WorkerLink] = {}
        self._suspects: dict[str, tuple[float, WorkerLink]] = {}
        self._listed: tuple[WorkerEntry, ...] = ()
        self._entries: dict[str, WorkerEntry] = {}
        """of what is listed, all that is worth a dial"""
        self._unlinked = Unlinked()
        self._lost = LostWorkers()
        self._session_secret = secrets.token_hex(32)
        self._dialing: set[str] = set()
        self._past_counters: Counter[str] = Counter()
        self._ping_seq = 0
        self._num_dials = 0
        self._closing = False
        self._tasks = Tasks()
        self.loops = Loops(clock)

    def start(self, user: LinkUser) -> None:
        """Begin to poll, dial and ping."""
        self._user = user
        self.loops.start("registry", self._poll_registry, POLL_INTERVAL_S)
        self.loops.start("dial", self._redial, REDIAL_INTERVAL_S)
        self.loops.start("ping", self._ping_linked, PING_INTERVAL_S)

    async def close(self) -> None:
        """Hang up on everybody."""
        self._closing = True
        await self.loops.close()
        await self._tasks.close()
        for worker in list(self._workers.values()):
            await worker.link.close()

    def get(self, incarnation: str | None) -> WorkerLink | None:
        """The linked worker of this incarnation."""
        return self._workers.get(incarnation) if incarnation is not None else None

    def workers(self) -> list[WorkerLink]:
        return list(self._workers.values())

    def paces(self) -> list[Pace]:
        """How fast each decodes."""
        return [worker.pace for worker in self._workers.values()]

    def gaps_s(self) -> dict[str, float]:
        """Between two tokens of one answer, of late, by incarnation; 0: it decoded none."""
        now_s = self._clock.monotonic_s()
        return {inc: worker.gaps.mean_s(now_s) for inc, worker in self._workers.items()}

    def entries(self) -> list[WorkerEntry]:
        """What the registry last listed."""
        return list(self._entries.values())

    def may_serve_elsewhere(self, roles: Collection[str]) -> bool:
        """Whether the registry lists workers of these roles, or of another pool of the model, that
        this gateway is not linked to and another one may be."""
        if not roles or not self.registry_answers:
            return False
        unlinked = {entry.role for entry in self._listed if entry.incarnation not in self._workers}
        return bool(self.other_pools) or not unlinked.isdisjoint(roles)

    def max_model_len(self) -> int | None:
        """Longest sequence that every listed worker holds; None when none is listed."""
        return min((entry.max_model_len for entry in self._entries.values()), default=None)

    @property
    def other_pools(self) -> tuple[str, ...]:
        """Pools of the model that have workers and are not served here."""
        return self._served.others

    def ping_all(self) -> None:
        """PING now, for instance because the backlog grew."""
        assert self._user is not None
        self._ping_seq += 1
        for worker in self._workers.values():
            worker.send(Ping(self._ping_seq, self._user.num_backlogged(worker)))

    def trouble(self) -> str:
        """Which registered workers are not linked and why, and which were lost; nothing when all
        are there."""
        parts = (self._served.trouble(), self._unlinked.text(), self._lost.text())
        return "; ".join(filter(None, parts))

    def status(self) -> list[dict[str, Any]]:
        """The workers of `status --json`, by id; a lost one stays SUSPECT_S as suspect."""
        entries = [worker.status(suspect=suspect) for worker, suspect in self.shown()]
        return sorted(entries, key=lambda entry: (entry["id"], entry["incarnation"]))

    def shown(self) -> list[tuple[WorkerLink, bool]]:
        """All workers that are linked, or were until SUSPECT_S ago: those are suspect."""
        self._drop_suspects()
        since_s = self._clock.monotonic_s() - SUSPECT_S
        lost = [worker for lost_s, worker in self._suspects.values() if lost_s > since_s]
        linked = [(worker, False) for worker in self._workers.values()]
        return linked + [(worker, True) for worker in lost]

    def counter_totals(self) -> dict[str, int]:
        """Sums over all workers, also those that are gone, so that totals never fall."""
        totals = Counter(self._past_counters)
        for worker in self._workers.values():
            totals.update(worker.counters)
        return dict(totals)

    def samples(self) -> list[WorkerSample]:
        """What each linked worker last said, for metrics."""
        return [
            WorkerSample(
                worker.worker_id,
                worker.hello.role,
                worker.load,
                worker.counters,
                worker.stages,
                worker.gauges,
            )
            for worker in self._workers.values()
        ]

    # Turns of the loops

    def prefill_seen(self, topology: Topology) -> bool:
        """The pool has had a prefill worker, or is meant to have one, and the other workers have
        been linked for long enough without it: then they serve alone."""
        if self._prefill_seen or topology != "pd" or self._first_linked_s is None:
            return self._prefill_seen
        return self._clock.monotonic_s() - self._first_linked_s >= PREFILL_WAIT_S

    async def _poll_registry(self) -> None:
        try:
            entries = await self._list()
        except Exception:
            self.registry_answers = False
            raise
        self.registry_answers = True
        self._unlinked.keep(entries)
        listed = {entry.incarnation for entry in entries}
        self._lost.see(listed, self._clock.monotonic_s())
        self._listed = entries
        self._entries = {
            entry.incarnation: entry for entry in entries if not self._unlinked.is_stranger(entry)
        }
        self._prefill_seen |= any(entry.role == "prefill" for entry in entries)
        self._dial_missing()

    async def _list(self) -> tuple[WorkerEntry, ...]:
        """The workers of the pool that is served; which one that is may change first."""
        assert self._user is not None
        served, known = self._served, await self._registry.pools()
        pools = {served.name, *filter(served.has, known)} - {""}
        listed = {pool: await self._registry.list(pool) for pool in sorted(pools)}
        strange = set() if any(listed.values()) else known - pools
        entries = [entry for pool in strange for entry in await self._registry.list(pool)]
        served.note_others({entry.model for entry in entries})
        served.note(listed, may_change=not self._workers and self._user.may_change_pool())
        return listed.get(served.name, ())

    async def _redial(self) -> None:
        self._dial_missing()
        self._drop_suspects()

    async def _ping_linked(self) -> None:
        for worker in self.workers():
            worker.num_unanswered_pings += 1
            if worker.num_unanswered_pings > MAX_UNANSWERED_PINGS:
                self._give_up(worker)
        self.ping_all()

    def _dial_missing(self) -> None:
        for inc, entry in self._entries.items():
            if inc not in self._workers and inc not in self._dialing:
                self._dialing.add(inc)
                self._tasks.start(self._open(entry))

    def _drop_suspects(self) -> None:
        """Forget those that cannot come back: replaced, or no longer listed."""
        now_s = self._clock.monotonic_s()
        replaced = {worker.worker_id for worker in self._workers.values()}
        for inc, (since_s, worker) in list(self._suspects.items()):
            gone = now_s - since_s >= SUSPECT_S and inc not in self._entries
            if gone or worker.worker_id in replaced:
                del self._suspects[inc]
                for other in self._workers.values():
                    other.forget_source(inc)

    # Links

    async def _open(self, entry: WorkerEntry) -> None:
        assert self._user is not None
        attempts = self._user.live_attempts(entry.incarnation)[:MAX_LIVE_ATTEMPTS]
        session = purpose_key(self._session_secret, entry.incarnation).hex()
        self._num_dials += 1
        hello = Hello(
            "gateway",
            self._gateway_incarnation,
            entry.pool,
            attempts,
            to=entry.incarnation,
            session=session,
            dial=self._num_dials,
        )
        try:
            link = await self._dial(entry.host, entry.port, hello, self._receive, self._closed)
            self._unlinked.forget(entry)
            if self._register(link) is None:
                await link.close()
        except (PeerLostError, ProtocolError) as error:
            self._unlinked.note(entry, error)
            if self._unlinked.is_stranger(entry):
                logger.warning("worker %s is not dialled again: %s", entry.worker_id, error)
                self._entries.pop(entry.incarnation, None)
            else:
                logger.debug("worker %s not linked: %s", entry.worker_id, error)
        finally:
            self._dialing.discard(entry.incarnation)

    def _register(self, link: OpenLink) -> WorkerLink | None:
        """Take a link into use; None if it must not be."""
        known = self._by_link.get(link)
        if known is not None:
            return known
        peer = link.peer
        if (
            link.closed
            or self._closing
            or peer.pool != self._served.name
            or peer.incarnation in self._workers
        ):
            return None
        worker = WorkerLink(link, worker_id_of(peer.incarnation), self._clock)
        former = self._suspects.pop(peer.incarnation, None)
        if former is not None:
            self._past_counters.subtract(former[1].counters)
            worker.counters = dict(former[1].counters)
        self._workers[peer.incarnation] = self._by_link[link] = worker
        if self._first_linked_s is None:
            self._first_linked_s = self._clock.monotonic_s()
        self._prefill_seen |= peer.role == "prefill"
        self.views = [item.view for item in self._workers.values()]
        logger.info("worker linked: %s (%s)", worker.worker_id, peer.role)
        self.events.note("worker", f"{worker.worker_id} linked")
        self._lost.linked(worker.worker_id, peer.role)
        assert self._user is not None
        self._user.worker_up(worker)
        return worker

    def _receive(self, link: OpenLink, message: Message) -> None:
        worker = self._register(link)
        if worker is None:
            return
        worker.note_frame()
        if isinstance(message, Pong):
            worker.counters = message.counters or worker.counters
            worker.stages = message.stages
            worker.gauges = message.gauges
            worker.rates.note(self._clock.monotonic_s(), worker.counters)
            worker.note_load(message.load)
        assert self._user is not None
        self._user.receive(worker, message)

    def _closed(self, link: OpenLink) -> None:
        worker = self._by_link.pop(link, None)
        if worker is not None:
            self._lose(worker)

    def _give_up(self, worker: WorkerLink) -> None:
        """It is silent: what it may still say no longer counts."""
        logger.warning("worker silent: %s", worker.worker_id)
        self._by_link.pop(worker.link, None)
        self._tasks.start(worker.link.close())
        self._lose(worker)

    def _lose(self, worker: WorkerLink) -> None:
        del self._workers[worker.incarnation]
        self.views = [item.view for item in self._workers.values()]
        self._past_counters.update(worker.counters)
        now_s = self.lost_at_s = self._clock.monotonic_s()
        if self._closing:
            return
        self._suspects[worker.incarnation] = (now_s, worker)
        if not worker.drains:
            self._lost.note(worker.incarnation, worker.worker_id, worker.hello.role, now_s)
        assert self._user is not None
        num_live = len(self._user.live_attempts(worker.incarnation))
        what = "left" if worker.drains else "lost"
        told = f"{worker.worker_id} {what} with {num_live} live requests"
        logger.log(logging.INFO if worker.drains else logging.WARNING, "%s", told)
        self.events.note("worker", told)
        self._user.worker_lost(worker)
