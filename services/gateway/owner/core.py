"""The core of a gateway: the requests, and the three that use them, put together.

Door          requests come in and out, and status is asked for
Frames        what workers say of them
RequestClock  deadlines, stalls, the waiting line
"""

from dataclasses import dataclass

from services.gateway.owner.counters import DispatchCounters
from services.gateway.owner.door import Door
from services.gateway.owner.frames import Frames
from services.gateway.owner.identity import GatewayIdentity
from services.gateway.owner.links.worker_links import WorkerLinks
from services.gateway.owner.placement.placer import Placer
from services.gateway.owner.placement.return_times import ReturnTimes
from services.gateway.owner.records.journal import Journal
from services.gateway.owner.records.observer import Observer
from services.gateway.owner.records.open_records import OpenRecords
from services.gateway.owner.records.record_writer import RecordWriter
from services.gateway.owner.request_clock import RequestClock
from services.gateway.owner.requests import Requests
from services.gateway.owner.view.live_view import LOOK_INTERVAL_S
from services.gateway.owner.waiting_line import WaitingLine
from shared.clock import Clock
from shared.loops import Loops
from shared.queue.backlog import Backlog
from shared.settings.groups import LimitSettings
from shared.state.prefix_index import PrefixIndex
from shared.state.records import RequestRecords
from shared.telemetry.metrics import GatewayFacts


@dataclass(frozen=True)
class GatewayStores:
    """What the gateway keeps or reads outside its own memory."""

    records: RequestRecords
    backlog: Backlog
    index: PrefixIndex


class GatewayCore:
    """`start` once, `close` once; all calls on one event loop."""

    def __init__(
        self,
        limits: LimitSettings,
        identity: GatewayIdentity,
        stores: GatewayStores,
        links: WorkerLinks,
        clock: Clock,
        observer: Observer,
    ) -> None:
        self.counters = DispatchCounters()
        journal, returns = Journal(self.counters, observer, clock), ReturnTimes(clock)
        placer = Placer(identity, links, stores.index, journal, clock)
        self._links = links
        self._line = WaitingLine(
            identity.gateway_incarnation, stores.backlog, self.counters, clock, links.ping_all
        )
        self._writer = RecordWriter(stores.records)
        self._records = OpenRecords(self._writer, identity, self.counters)
        self.requests = Requests(links, placer, self._line, self._records, journal, returns, clock)
        self.door = Door(limits, identity, self.requests, links, journal, returns, clock)
        self.frames = Frames(self.requests, placer, journal, observer, clock, identity.vocab_size)
        self.request_clock = RequestClock(limits.first_token_timeout_s, self.requests, links, clock)
        self.loops = Loops(clock)

    def start(self) -> None:
        """Dial workers and begin to watch the clock."""
        self._links.start(self.frames)
        self.loops.start("requests", self.request_clock.turn)
        self.loops.start("live view", self.door.view.turn, LOOK_INTERVAL_S)
        self._writer.start(self.loops)

    async def close(self) -> None:
        """End what still lives, record it, hang up."""
        await self.door.drain(0.0)
        self._records.close_all()
        await self._writer.close()
        await self.loops.close()
        await self._line.close()
        await self._links.close()

    def facts(self) -> GatewayFacts:
        """What `/metrics` tells of the requests and their dispatch."""
        counters = self.counters
        num_waiting = sum(live.machine.waits for live in self.requests.all())
        return GatewayFacts(
            serves=self.door.serves(),
            num_running=len(self.requests) - num_waiting,
            num_waiting=num_waiting,
            direct_assigns=counters.direct_assigns,
            backlog_puts=counters.backlog_puts,
            backlog_pulls=counters.backlog_pulls,
            retries_held=counters.retries_held,
            attempts=counters.attempts,
            admissions_refused=counters.admissions_refused,
            worker_totals=self._links.counter_totals(),
            records_dropped=self._writer.num_dropped,
        )
