"""`baton serve gateway`: the gateway's process.

checkpoint (config, tokenizer) -> links, dispatcher, upkeep -> HTTP; the pool comes from the workers
SIGTERM                        -> no new connections, live streams finish, then stop
"""

import asyncio
import os
import socket
import time
from functools import partial
from typing import cast

from prometheus_client import disable_created_metrics

from services.gateway.http.server import http_server
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
from services.gateway.routes.app import create_app
from services.gateway.routes.generate import TENANT
from shared.block_hash import root_hash
from shared.checkpoint import Checkpoint, load_checkpoint
from shared.clock import SystemClock
from shared.errors import SettingsError
from shared.event_loop import run_main
from shared.link.link import Link
from shared.process import new_incarnation
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
from shared.telemetry.logs import configure_logs
from shared.telemetry.metrics import GatewayFacts, GatewayMetrics
from shared.telemetry.tracing import build_span_sink


def run(settings: Settings) -> int:
    """Serve until SIGTERM; returns the exit status."""
    if settings.embedded_redis:
        raise SettingsError("--redis: a gateway needs the URL of a running Redis")
    configure_logs(settings.log_level)
    disable_created_metrics()  # type: ignore[no-untyped-call]
    checkpoint = load_checkpoint(settings.model)
    listener = listen(settings.host, settings.port)
    return run_main(serve(settings, checkpoint, listener))


async def serve(settings: Settings, checkpoint: Checkpoint, listener: socket.socket) -> int:
    """Join the parts, answer HTTP until told to stop, then take them apart."""
    gateway = Gateway(settings, checkpoint, listener)
    gateway.start()
    draining = asyncio.create_task(gateway.drain_when_told(settings.drain_s))
    await gateway.server.serve(sockets=[listener])
    await draining
    await gateway.close()
    return 0


class Gateway:
    """Everything one gateway process holds."""

    def __init__(self, settings: Settings, checkpoint: Checkpoint, listener: socket.socket) -> None:
        model = served_model(checkpoint, settings, created_s=int(time.time()))
        clock, keys = SystemClock(), Keys()
        self._redis = RedisClient(settings.redis)
        redis = self._redis
        records = RedisRequestRecords(redis, keys)
        backlog = RedisBacklog(redis, keys, "", settings.max_backlog)
        served = ServedPool(model.name, on_change=backlog.serve)
        identity = gateway_identity(settings, model, served, listener)
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
        self._text = TextPool(
            checkpoint.path,
            model,
            hash_root=root_hash(settings.block_hash_secret, TENANT),
            block_size=settings.block_size,
            workers_limit=self._links.max_model_len,
        )
        app = create_app(
            settings, model, self._dispatcher, self._text, metrics.text, identity.version
        )
        self.server = http_server(app, settings)

    def start(self) -> None:
        self._dispatcher.start()
        self._upkeep.start()

    def _facts(self) -> GatewayFacts:
        return self._dispatcher.facts()

    async def drain_when_told(self, limit_s: float) -> None:
        """From SIGTERM on: streams get `limit_s`, then one clean error each."""
        await self.server.stopping.wait()
        await self._dispatcher.drain(limit_s)

    async def close(self) -> None:
        """Requests that still live end with one clean error each, then the rest."""
        await self._upkeep.close()
        await self._dispatcher.close()
        await self._text.close()
        self._sink.close()
        await self._redis.close()


def gateway_identity(
    settings: Settings, model: ServedModel, served: ServedPool, listener: socket.socket
) -> GatewayIdentity:
    """Who this gateway is."""
    host, port = listener.getsockname()[:2]
    return GatewayIdentity(
        g_inc=new_incarnation(f"gateway-{os.getpid()}"),
        served=served,
        version=release(),
        url=f"http://{host}:{port}",
        model=model.name,
        max_model_len=model.max_model_len,
        topology=cast(Topology, settings.topology),
        vocab_size=model.vocab_size,
    )


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; SettingsError when the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise SettingsError(f"--port {port}: cannot listen on {host}: {error.strerror}") from None
