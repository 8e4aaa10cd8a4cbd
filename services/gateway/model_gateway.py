"""All that a gateway holds for one model: its text, its requests, its links and their upkeep.

A gateway of several models has one of these for each, with an incarnation of its own: to workers
and in Redis they are gateways that know nothing of each other.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

from services.gateway.owner.core import GatewayCore, GatewayStores
from services.gateway.owner.identity import GatewayIdentity
from services.gateway.owner.links.served_pool import ServedPool
from services.gateway.owner.links.worker_links import WorkerLinks
from services.gateway.owner.records.metrics_observer import MetricsObserver
from services.gateway.owner.upkeep import Upkeep
from services.gateway.owner.view.other_receipts import OtherReceipts
from services.gateway.owner.view.scaling_feed import ScalingFeed
from services.gateway.prompt.served_model import ServedModel, served_model
from services.gateway.prompt.text_work.text_pool import TextPool
from services.gateway.routes.served import Served
from shared.clock import SystemClock
from shared.kv.block_hash import BlockHashing
from shared.link.link import Link
from shared.model.checkpoint import Checkpoint
from shared.process import new_incarnation
from shared.queue.redis_backlog import RedisBacklog
from shared.release import release
from shared.settings.groups import KVPressure, Settings, Topology
from shared.state.keys import Keys
from shared.state.kv_feed import PrefixFeed
from shared.state.notes.receipt_calls import ReceiptCalls
from shared.state.notes.scaling import ScalingNotes
from shared.state.prefix_index import PrefixIndex
from shared.state.reaper import Reaper
from shared.state.redis_client import RedisClient
from shared.state.redis_kv_events import RedisKVEvents
from shared.state.redis_liveness import RedisGatewayLiveness
from shared.state.redis_records import RedisRequestRecords
from shared.state.redis_registry import RedisWorkerRegistry
from shared.telemetry.attainment import Objectives
from shared.telemetry.metrics import GatewayFacts, GatewayMetrics
from shared.telemetry.span_sink import build_span_sink


@dataclass(frozen=True)
class Addresses:
    """Where a gateway answers, as it shows it to workers and operators."""

    url: str
    admin_url: str


class ModelGateway:
    """`start` once, `close` once; all calls on one event loop."""

    def __init__(
        self,
        settings: Settings,
        checkpoint: Checkpoint,
        redis: RedisClient,
        addresses: Addresses,
        process_totals: Callable[[], Mapping[str, int]],
    ) -> None:
        """`process_totals`: what the process counts as workers do, in the same totals."""
        limits, network = settings.limits, settings.network
        self._process_totals = process_totals
        length = settings.compute.max_model_len
        self.model = served_model(
            checkpoint, settings.model, length, limits.unknown_fields, int(time.time())
        )
        clock, keys = SystemClock(), Keys()
        records = RedisRequestRecords(redis, keys)
        backlog = RedisBacklog(redis, keys, "", limits.max_backlog)
        served = ServedPool(self.model.name, on_change=backlog.serve)
        hashing = settings.kv.hashing(network.cell_secret)
        identity = gateway_identity(settings, self.model, hashing, served, addresses)
        g_inc = identity.gateway_incarnation
        index = PrefixIndex()
        self._links = WorkerLinks(
            RedisWorkerRegistry(redis, keys),
            served,
            g_inc,
            clock,
            partial(Link.dial, cell_secret=network.cell_secret),
        )
        attributes = {"service.instance.id": g_inc}
        self._sink = build_span_sink(settings.telemetry.otlp_endpoint, "baton-gateway", attributes)
        self.metrics = GatewayMetrics(self._links.samples, self._facts, _objectives(settings))
        self._core = GatewayCore(
            limits,
            identity,
            GatewayStores(records, backlog, index),
            self._links,
            clock,
            MetricsObserver(self.metrics, self._sink, self.model.name),
        )
        self.door = self._core.door
        requests = self._core.requests
        reaper = Reaper(g_inc, RedisGatewayLiveness(redis, keys), records, clock)
        feed = PrefixFeed(RedisKVEvents(redis, keys), index)
        self._upkeep = Upkeep(g_inc, requests, self._links, records, backlog, reaper, feed)
        self._scaling = ScalingFeed(ScalingNotes(redis, keys), served, self.door.view)
        self.receipts = OtherReceipts(ReceiptCalls(redis, keys, g_inc), self.door.receipt)
        self._parts = (self._core, self._upkeep, self._scaling, self.receipts)
        self._loops = (self._links.loops, *(part.loops for part in self._parts))
        longest = self._links.max_model_len
        self._text = TextPool(checkpoint.path, self.model, hashing, workers_limit=longest)
        self.served = Served(self.model, self.door, self._text)

    async def start(self) -> None:
        await self._text.start()
        for part in self._parts:
            part.start()

    async def close(self) -> None:
        """Requests that still live end with one clean error each, then the rest."""
        for part in reversed(self._parts):
            await part.close()
        await self._text.close()
        self._sink.close()

    def trouble(self) -> str:
        """Which background loop fails; nothing when none does."""
        return "; ".join(filter(None, (loops.trouble() for loops in self._loops)))

    def _facts(self) -> GatewayFacts:
        facts = self._core.facts()
        totals = Counter(facts.worker_totals)
        totals.update(self._process_totals())
        for loops in self._loops:
            totals.update({f"loop_failures:{name}": num for name, num in loops.failures().items()})
        ignored = self._text.ignored_fields.counts
        return replace(facts, worker_totals=totals, ignored_fields=ignored)


def gateway_identity(
    settings: Settings,
    model: ServedModel,
    hashing: BlockHashing,
    served: ServedPool,
    addresses: Addresses,
) -> GatewayIdentity:
    """The identity that a gateway shows to workers and in `status`."""
    return GatewayIdentity(
        gateway_incarnation=new_incarnation(f"gateway-{os.getpid()}"),
        served=served,
        version=release(),
        url=addresses.url,
        admin_url=addresses.admin_url,
        model=model.name,
        max_model_len=model.max_model_len,
        hashing=hashing,
        topology=cast(Topology, settings.cell.topology),
        on_kv_pressure=cast(KVPressure, settings.kv.on_pressure),
        vocab_size=model.vocab_size,
    )


def _objectives(settings: Settings) -> Objectives:
    return Objectives(
        settings.telemetry.slo_ttft_ms / 1e3,
        settings.engine.slo_gap_ms / 1e3,
    )
