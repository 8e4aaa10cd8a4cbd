"""`baton serve gateway`: the gateway's process.

checkpoints without weights -> a ModelGateway for each -> HTTP
SIGTERM                     -> no new connections, live streams finish, then stop
"""

import asyncio
import logging
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from prometheus_client import disable_created_metrics

from services.gateway.answer.submit_order import PromptSharing
from services.gateway.http.server import admin_server, http_limits, http_server
from services.gateway.model_gateway import Addresses, ModelGateway
from services.gateway.model_list import each_model
from services.gateway.routes.app import create_admin_app, create_app
from services.gateway.routes.served import ServedModels
from services.gateway.routes.status import StatusRoutes
from shared.challenge import warn_if_short
from shared.device_type import device_type
from shared.errors import SettingsError
from shared.event_loop import run_main
from shared.model.checkpoint import Checkpoint, load_checkpoint
from shared.process import freeze_heap, map_large_blocks
from shared.release import release
from shared.settings.groups import Settings
from shared.settings.load import said_of_preset
from shared.state.redis_client import RedisClient
from shared.telemetry.by_model import text_by_model
from shared.telemetry.logs import configure_logs, num_dropped_lines

logger = logging.getLogger(__name__)

RECEIVE_BUFFER_BYTES = 64 * 1024
"""of a connection, which inherits it: what hundreds of bodies bring at once is one turn of the
event loop. 4 MiB still arrive within 10 s over a round trip of 150 ms"""


def run(settings: Settings) -> int:
    """Serve until SIGTERM; returns the exit status."""
    if settings.cell.embedded_redis:
        raise SettingsError("--redis: a gateway needs the URL of a running Redis")
    configure_logs(settings.telemetry.log_level)
    for line in said_of_preset(settings):
        logger.info("%s", line)
    warn_if_short(settings.network.cell_secret)
    disable_created_metrics()  # type: ignore[no-untyped-call]
    map_large_blocks()
    models = each_model(settings)
    checkpoints = [_checkpoint(each) for each in models]
    network = settings.network
    listeners = Listeners(
        listen(network.host, network.port, "--port"),
        listen(network.host, network.admin_port, "--admin-port"),
    )
    return run_main(serve(models, checkpoints, listeners))


def _checkpoint(settings: Settings) -> Checkpoint:
    model = settings.model
    return load_checkpoint(model.name, random_weights=model.random_weights, texts_only=True)


async def serve(
    models: Sequence[Settings], checkpoints: Sequence[Checkpoint], listeners: "Listeners"
) -> int:
    """Join the parts, answer HTTP until told to stop, then take them apart."""
    settings = models[0]
    gateway = Gateway(models, checkpoints, listeners)
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

    def __init__(
        self, settings: Sequence[Settings], checkpoints: Sequence[Checkpoint], listeners: Listeners
    ) -> None:
        """`settings`: of each model; what is not about a model is the same in all of them."""
        first, addresses = settings[0], Addresses(_url(listeners.clients), _url(listeners.admin))
        self._redis = RedisClient(first.cell.redis)
        self._models = [
            ModelGateway(each, checkpoint, self._redis, addresses, totals)
            for each, checkpoint, totals in zip(
                settings, checkpoints, (self._totals, *[dict] * (len(settings) - 1)), strict=True
            )
        ]
        registries = {each.model.name: each.metrics.registry for each in self._models}
        models = ServedModels([each.served for each in self._models])
        status = StatusRoutes(
            models,
            partial(text_by_model, registries),
            release(),
            self._trouble,
            self._models[0].receipts.find,
        )
        device = device_type(first.compute.device)
        sharing = PromptSharing.of(first.engine, first.kv.block_size, device)
        app = create_app(first.limits, first.network, sharing, models, status)
        self.server = http_server(app, first.limits.drain_s, http_limits(first.limits))
        self.admin = admin_server(create_admin_app(status))

    async def start(self) -> None:
        for model in self._models:
            await model.start()

    def _totals(self) -> dict[str, int]:
        """What this process counts as workers do."""
        errors = {f"redis_errors:{kind}": num for kind, num in self._redis.errors.items()}
        return {"log_lines_dropped": num_dropped_lines(), **errors}

    def _trouble(self) -> str:
        return "; ".join(filter(None, (model.trouble() for model in self._models)))

    async def drain_when_told(self, limit_s: float) -> None:
        """From SIGTERM on: streams, and one more request of each connection that is open, get
        `limit_s`, then one clean error each."""
        await self.server.stopping.wait()
        logger.info("shutting down: what runs has %g s to finish", limit_s)
        may_come = self.server.has_connections
        await asyncio.gather(*(model.door.drain(limit_s, may_come) for model in self._models))
        self.server.refuse_unfinished()

    async def close(self) -> None:
        for model in self._models:
            await model.close()
        await self._redis.close()


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
