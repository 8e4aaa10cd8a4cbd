"""`baton serve gateway`: the gateway's process.

checkpoint without weights -> links, core, upkeep -> HTTP; the pool comes from the workers
SIGTERM                    -> no new connections, live streams finish, then stop
"""

import asyncio
import logging
import os
import socket
import time
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

from prometheus_client import disable_created_metrics

from services.gateway.answer.submit_order import PromptSharing
from services.gateway.http.server import admin_server, http_limits, http_server
from services.gateway.owner.core import GatewayCore, GatewayStores
from services.gateway.owner.identity import GatewayIdentity
from services.gateway.owner.links.prefill_cost import PrefillCost
from services.gateway.owner.links.served_pool import ServedPool
from services.gateway.owner.links.worker_links import WorkerLinks
from services.gateway.owner.records.metrics_observer import MetricsObserver
from services.gateway.owner.upkeep import Upkeep
from services.gateway.owner.view.other_receipts import OtherReceipts
from services.gateway.owner.view.scaling_feed import ScalingFeed
from services.gateway.prompt.served_model import ServedModel, served_model
from services.gateway.prompt.text_work.text_pool import TextPool
from services.gateway.routes.app import create_admin_app, create_app
from services.gateway.routes.status import StatusRoutes
from shared.challenge import warn_if_short
from shared.clock import SystemClock
from shared.device_type import device_type
from shared.errors import SettingsError
from shared.event_loop import run_main
from shared.kv.block_hash import BlockHashing
from shared.link.link import Link
from shared.model.checkpoint import Checkpoint, load_checkpoint
from shared.process import freeze_heap, map_large_blocks, new_incarnation
from shared.queue.redis_backlog import RedisBacklog
from shared.release import release
from shared.settings.groups import CellSettings, Settings, Topology
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
from shared.telemetry.logs import configure_logs, num_dropped_lines
from shared.telemetry.metrics import GatewayFacts, GatewayMetrics
from shared.telemetry.span_sink import build_span_sink

logger = logging.getLogger(__name__)

RECEIVE_BUFFER_BYTES = 64 * 1024
"""of a connection, which inherits it: what hundreds of bodies bring at once is one turn of the
event loop. 4 MiB still arrive within 10 s over a round trip of 150 ms"""


def run(settings: Settings) -> int:
    """Serve until SIGTERM; returns the exit status."""
    if settings.cell.embedded_redis:
        raise SettingsError("--redis: a gateway needs the URL of a running Redis")
    configure_logs(settings.telemetry.log_level)
    warn_if_short(settings.network.cell_secret)
    disable_created_metrics()  # type: ignore[no-untyped-call]
    map_large_blocks()
    model = settings.model
    checkpoint = load_checkpoint(model.name, random_weights=model.random_weights, texts_only=True)
    network = settings.network
    listeners = Listeners(
        listen(network.host, network.port, "--port"),
        listen(network.host, network.admin_port, "--admin-port"),
    )
    return run_main(serve(settings, checkpoint, listeners))


async def serve(settings: Settings, checkpoint: Checkpoint, listeners: "Listeners") -> int:
    """Join the parts, answer HTTP until told to stop, then take them apart."""
    gateway = Gateway(settings, checkpoint, listeners)
    await gateway.start()
    freeze_heap()
    draining = asyncio.create_task(gateway.drain_when_told(settings.limits.drain_s))
    administration = asyncio.create_task(gateway.admin.serve(sockets=[listeners.admin]))
    addresses = _url(listeners.clients), _url(listeners.admin)
    logger.info("listening on %s, probes and metrics on %s", *addresses)
    await gateway.server.serve(sockets=[listeners.clients])
    await draining
    gateway.admin.should_exit = True
    await administration
    await gateway.close()
    return 0


@dataclass(frozen=True)
class Listeners:
    """The bound sockets of a gateway."""

    clients: socket.socket
    admin: socket.socket


class Gateway:
    """Everything one gateway process holds."""

    def __init__(self, settings: Settings, checkpoint: Checkpoint, listeners: Listeners) -> None:
        compute, kv, limits = settings.compute, settings.kv, settings.limits
        network = settings.network
        length, unknown_fields = compute.max_model_len, limits.unknown_fields
        model = served_model(checkpoint, settings.model, length, unknown_fields, int(time.time()))
        clock, keys = SystemClock(), Keys()
        redis = self._redis = RedisClient(settings.cell.redis)
        records = RedisRequestRecords(redis, keys)
        backlog = RedisBacklog(redis, keys, "", limits.max_backlog)
        served = ServedPool(model.name, on_change=backlog.serve)
        hashing = kv.hashing(network.cell_secret)
        identity = gateway_identity(settings.cell, model, hashing, served, listeners)
        index, cost = PrefixIndex(), PrefillCost()
        self._links = WorkerLinks(
            RedisWorkerRegistry(redis, keys),
            served,
            identity.gateway_incarnation,
            clock,
            cost,
            partial(Link.dial, cell_secret=network.cell_secret),
        )
        attributes = {"service.instance.id": identity.gateway_incarnation}
        self._sink = build_span_sink(settings.telemetry.otlp_endpoint, "baton-gateway", attributes)
        metrics = GatewayMetrics(self._links.samples, self._facts, _objectives(settings))
        self._core = GatewayCore(
            limits,
            identity,
            GatewayStores(records, backlog, index),
            self._links,
            cost,
            clock,
            MetricsObserver(metrics, self._sink, model.name),
        )
        reaper = Reaper(
            identity.gateway_incarnation, RedisGatewayLiveness(redis, keys), records, clock
        )
        feed = PrefixFeed(RedisKVEvents(redis, keys), index)
        self._upkeep = Upkeep(
            identity.gateway_incarnation,
            self._core.requests,
            self._links,
            records,
            backlog,
            reaper,
            feed,
        )
        self._scaling = ScalingFeed(ScalingNotes(redis, keys), served, self._core.door.view)
        calls = ReceiptCalls(redis, keys, identity.gateway_incarnation)
        self._receipts = OtherReceipts(calls, self._core.door.receipt)
        self._parts = (self._core, self._upkeep, self._scaling, self._receipts)
        self._loops = (self._links.loops, *(part.loops for part in self._parts))
        longest = self._links.max_model_len
        self._text = TextPool(checkpoint.path, model, hashing, workers_limit=longest)
        status = StatusRoutes(
            self._core.door, metrics.text, identity.version, self._trouble, self._receipts.find
        )
        sharing = PromptSharing.of(settings.engine, kv.block_size, device_type(compute.device))
        app = create_app(limits, network, sharing, model, self._core.door, self._text, status)
        self.server = http_server(app, limits.drain_s, http_limits(limits))
        self.admin = admin_server(create_admin_app(status))

    async def start(self) -> None:
        await self._text.start()
        for part in self._parts:
            part.start()

    def _facts(self) -> GatewayFacts:
        """With what this process counts as workers do, in the same totals."""
        facts = self._core.facts()
        totals = Counter(facts.worker_totals)
        totals["log_lines_dropped"] += num_dropped_lines()
        for loops in self._loops:
            totals.update({f"loop_failures:{name}": num for name, num in loops.failures().items()})
        totals.update({f"redis_errors:{kind}": num for kind, num in self._redis.errors.items()})
        ignored = self._text.ignored_fields.counts
        return replace(facts, worker_totals=totals, ignored_fields=ignored)

    def _trouble(self) -> str:
        return "; ".join(filter(None, (loops.trouble() for loops in self._loops)))

    async def drain_when_told(self, limit_s: float) -> None:
        """From SIGTERM on: streams get `limit_s`, then one clean error each."""
        await self.server.last_call()
        logger.info("shutting down: what runs has %g s to finish", limit_s)
        await self._core.door.drain(limit_s)

    async def close(self) -> None:
        """Requests that still live end with one clean error each, then the rest."""
        for part in reversed(self._parts):
            await part.close()
        await self._text.close()
        self._sink.close()
        await self._redis.close()


def gateway_identity(
    cell: CellSettings,
    model: ServedModel,
    hashing: BlockHashing,
    served: ServedPool,
    listeners: Listeners,
) -> GatewayIdentity:
    """The identity that this gateway shows to workers and in `status`."""
    return GatewayIdentity(
        gateway_incarnation=new_incarnation(f"gateway-{os.getpid()}"),
        served=served,
        version=release(),
        url=_url(listeners.clients),
        admin_url=_url(listeners.admin),
        model=model.name,
        max_model_len=model.max_model_len,
        hashing=hashing,
        topology=cast(Topology, cell.topology),
        vocab_size=model.vocab_size,
    )


def _objectives(settings: Settings) -> Objectives:
    return Objectives(
        settings.telemetry.slo_ttft_ms / 1e3,
        settings.telemetry.slo_gap_ms / 1e3,
    )


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{host}:{port}"


def listen(host: str, port: int, flag: str) -> socket.socket:
    """A bound socket; SettingsError, which names the flag, when the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise SettingsError(f"{flag} {port}: cannot listen on {host}: {error.strerror}") from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
    return listener
