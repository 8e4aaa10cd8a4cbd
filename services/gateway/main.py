"""`baton serve gateway`: the gateway's process.

checkpoint (config, tokenizer) -> links, dispatcher, upkeep -> HTTP; the pool comes from the workers
SIGTERM                        -> no new connections, live streams finish, then stop
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

from services.gateway.http.server import admin_server, http_server
from services.gateway.owner.dispatcher import Dispatcher, GatewayStores
from services.gateway.owner.identity import GatewayIdentity
from services.gateway.owner.observation import Observation
from services.gateway.owner.prefill_cost import PrefillCost
from services.gateway.owner.router import Topology
from services.gateway.owner.served_pool import ServedPool
from services.gateway.owner.upkeep import Upkeep
from services.gateway.owner.worker_links import WorkerLinks
from services.gateway.prompt.served_model import ServedModel, served_model
from services.gateway.prompt.text_pool import TextPool
from services.gateway.routes.app import create_admin_app, create_app
from services.gateway.routes.generate import TENANT
from services.gateway.routes.status import StatusRoutes
from shared.block_hash import root_hash
from shared.challenge import warn_if_short
from shared.checkpoint import Checkpoint, load_checkpoint
from shared.clock import SystemClock
from shared.errors import SettingsError
from shared.event_loop import run_main
from shared.link.link import Link
from shared.process import map_large_blocks, new_incarnation
from shared.queue.redis_backlog import RedisBacklog
from shared.release import release
from shared.settings import Settings
from shared.state.keys import Keys
from shared.state.kv_feed import PrefixFeed
from shared.state.prefix_index import PrefixIndex
from shared.state.reaper import Reaper
from shared.state.redis_client import RedisClient
from shared.state.redis_kv_events import RedisKVEvents
from shared.state.redis_liveness import RedisGatewayLiveness
from shared.state.redis_records import RedisRequestRecords
from shared.state.redis_registry import RedisWorkerRegistry
from shared.telemetry.logs import configure_logs, num_dropped_lines
from shared.telemetry.metrics import GatewayFacts, GatewayMetrics
from shared.telemetry.tracing import build_span_sink

logger = logging.getLogger(__name__)

RECEIVE_BUFFER_BYTES = 64 * 1024
"""of a connection, which inherits it: what hundreds of bodies bring at once is one turn of the
event loop. 4 MiB still arrive within 10 s over a round trip of 150 ms"""


def run(settings: Settings) -> int:
    """Serve until SIGTERM; returns the exit status."""
    if settings.embedded_redis:
        raise SettingsError("--redis: a gateway needs the URL of a running Redis")
    configure_logs(settings.log_level)
    warn_if_short(settings.cell_secret)
    disable_created_metrics()  # type: ignore[no-untyped-call]
    map_large_blocks()
    checkpoint = load_checkpoint(settings.model, random_weights=settings.random_weights)
    listeners = Listeners(
        listen(settings.host, settings.port, "--port"),
        listen(settings.host, settings.admin_port, "--admin-port"),
    )
    return run_main(serve(settings, checkpoint, listeners))


async def serve(settings: Settings, checkpoint: Checkpoint, listeners: "Listeners") -> int:
    """Join the parts, answer HTTP until told to stop, then take them apart."""
    gateway = Gateway(settings, checkpoint, listeners)
    await gateway.start()
    draining = asyncio.create_task(gateway.drain_when_told(settings.drain_s))
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
        model = served_model(checkpoint, settings, created_s=int(time.time()))
        clock, keys = SystemClock(), Keys()
        self._redis = RedisClient(settings.redis)
        redis = self._redis
        records = RedisRequestRecords(redis, keys)
        backlog = RedisBacklog(redis, keys, "", settings.max_backlog)
        served = ServedPool(model.name, on_change=backlog.serve)
        identity = gateway_identity(settings, model, served, listeners)
        index = PrefixIndex()
        cost = PrefillCost()
        self._links = WorkerLinks(
            RedisWorkerRegistry(redis, keys),
            served,
            identity.g_inc,
            clock,
            cost,
            partial(Link.dial, cell_secret=settings.cell_secret),
        )
        self._sink = build_span_sink(
            settings.otlp_endpoint, "baton-gateway", {"service.instance.id": identity.g_inc}
        )
        metrics = GatewayMetrics(self._links.samples, self._facts)
        self._dispatcher = Dispatcher(
            settings,
            identity,
            GatewayStores(records, backlog, index),
            self._links,
            cost,
            clock,
            Observation(metrics, self._sink, model.name),
        )
        reaper = Reaper(identity.g_inc, RedisGatewayLiveness(redis, keys), records, clock)
        feed = PrefixFeed(RedisKVEvents(redis, keys), index)
        self._upkeep = Upkeep(
            identity.g_inc, self._dispatcher, self._links, records, backlog, reaper, feed
        )
        self._loops = (self._links.loops, self._dispatcher.loops, self._upkeep.loops)
        self._text = TextPool(
            checkpoint.path,
            model,
            hash_root=root_hash(settings.block_hash_secret, TENANT),
            block_size=settings.block_size,
            workers_limit=self._links.max_model_len,
        )
        status = StatusRoutes(self._dispatcher, metrics.text, identity.version, self._trouble)
        app = create_app(settings, model, self._dispatcher, self._text, status)
        self.server = http_server(app, settings)
        self.admin = admin_server(create_admin_app(status))

    async def start(self) -> None:
        await self._text.start()
        self._dispatcher.start()
        self._upkeep.start()

    def _facts(self) -> GatewayFacts:
        """With what this process counts as workers do, in the same totals."""
        facts = self._dispatcher.facts()
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
        await self.server.stopping.wait()
        logger.info("shutting down: what runs has %g s to finish", limit_s)
        await self._dispatcher.drain(limit_s)

    async def close(self) -> None:
        """Requests that still live end with one clean error each, then the rest."""
        await self._upkeep.close()
        await self._dispatcher.close()
        await self._text.close()
        self._sink.close()
        await self._redis.close()


def gateway_identity(
    settings: Settings, model: ServedModel, served: ServedPool, listeners: Listeners
) -> GatewayIdentity:
    """Who this gateway is."""
    return GatewayIdentity(
        g_inc=new_incarnation(f"gateway-{os.getpid()}"),
        served=served,
        version=release(),
        url=_url(listeners.clients),
        admin_url=_url(listeners.admin),
        model=model.name,
        max_model_len=model.max_model_len,
        topology=cast(Topology, settings.topology),
        vocab_size=model.vocab_size,
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
