"""What the gateway does with Redis apart from its requests, each at its own interval.

Once a second: write our heartbeat, and our records again if Redis lost them. As often, and without
holding up the heartbeat: take over the records of dead gateways, note the tokens delivered so far,
and share which requests are refused. Four times a second: read what workers cached. All of it may
fail for as long as Redis is away; nothing a client waits for is here.
"""

from services.gateway.owner.convictions import Convictions
from services.gateway.owner.links.worker_links import WorkerLinks
from services.gateway.owner.requests import Requests
from shared.loops import Loops
from shared.queue.backlog import Backlog
from shared.state.kv_feed import PrefixFeed
from shared.state.liveness import BEAT_INTERVAL_S
from shared.state.reaper import Reaper
from shared.state.records import RequestRecords

RECORDS_INTERVAL_S = 1.0
PREFIX_INTERVAL_S = 0.25
BEAT_LOOP = "beat"
"""The chart's autoscalers and alerts ask for its failures: they say that Redis is away."""


class Upkeep:
    """`start` once after the core, `close` once before it."""

    def __init__(
        self,
        gateway_incarnation: str,
        requests: Requests,
        links: WorkerLinks,
        records: RequestRecords,
        backlog: Backlog,
        reaper: Reaper,
        feed: PrefixFeed,
    ) -> None:
        self._gateway_incarnation = gateway_incarnation
        self._requests = requests
        self._convictions = Convictions(requests)
        self._links = links
        self._records = records
        self._backlog = backlog
        self._reaper = reaper
        self._feed = feed
        self.loops = Loops()

    def start(self) -> None:
        self.loops.start(BEAT_LOOP, self.beat, BEAT_INTERVAL_S)
        self.loops.start("records", self.tend_records, RECORDS_INTERVAL_S)
        self.loops.start("prefixes", self.follow_prefixes, PREFIX_INTERVAL_S)

    async def close(self) -> None:
        await self.loops.close()

    async def beat(self) -> None:
        """One turn of liveness; StateUnavailableError while Redis is away."""
        if await self._reaper.beat():
            self._requests.admit_all_again()
            self._requests.convicts.share_again()

    async def tend_records(self) -> None:
        """One turn with everybody's records; StateUnavailableError as above."""
        reaped = await self._reaper.reap()
        if reaped:
            await self._backlog.drop_orphans()
            for rid in reaped:
                self._reaper.settle(rid)
        if await self._requests.convicts.share(self._records):
            self._convictions.end_copies()
        progress = self._requests.progress()
        if progress:
            await self._records.mark(self._gateway_incarnation, progress)

    async def follow_prefixes(self) -> None:
        """One read of all workers' prefix caches."""
        await self._feed.poll([worker.incarnation for worker in self._links.workers()])
