"""The autoscaler's process: its parts, its loops, its end.

decide   each `every_s`: look, decide, and act if this process leads
tell     each few seconds: what was decided, to the gateways, which show it
drains   each few seconds: ask again those that are to drain
lease    each two seconds: take or renew the lease; only where replicas are ordered
"""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Mapping
from typing import Any

from services.autoscaler.autoscaler import Autoscaler
from services.autoscaler.cell import Cell
from services.autoscaler.drains import RENEW_S, Drains
from services.autoscaler.explanation import scaling
from services.autoscaler.kube.leadership import RENEW_S as RENEW_LEASE_S
from services.autoscaler.kube.seat import Seat
from services.autoscaler.page import PageServer, make_page
from services.autoscaler.plan import Plan, plan_of
from shared.clock import SystemClock
from shared.errors import BatonError, SettingsError
from shared.event_loop import run_main
from shared.loops import Loops
from shared.queue.redis_backlog import RedisBacklog
from shared.settings.groups import Settings
from shared.state.keys import Keys
from shared.state.notes.scaling import TELL_S, ScalingNotes
from shared.state.redis_client import RedisClient
from shared.state.redis_registry import RedisWorkerRegistry
from shared.state.traffic import Traffic
from shared.telemetry.logs import configure_logs

logger = logging.getLogger(__name__)


def run(settings: Settings, options: Mapping[str, Any]) -> int:
    """Until SIGTERM; returns the exit status. `options`: see `plan_of`."""
    if settings.cell.embedded_redis:
        raise SettingsError(
            "--redis: an autoscaler needs the URL of the cell's Redis; that of a `baton up` of "
            "this user on this machine is found without it, and none runs"
        )
    plan = plan_of(options)
    configure_logs(settings.telemetry.log_level)
    return run_main(_serve(settings.cell.redis, plan))


async def _serve(redis_url: str, plan: Plan) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with RedisClient(redis_url) as redis:
        process = Process(redis, plan)
        port = process.start()
        logger.info("mode %s; http://%s:%d/explain says why", plan.mode, plan.host, port)
        await stop.wait()
        await process.close()
    return 0


class Process:
    """Everything one autoscaler process holds."""

    def __init__(self, redis: RedisClient, plan: Plan) -> None:
        clock, keys = SystemClock(), Keys()
        registry, traffic = RedisWorkerRegistry(redis, keys), Traffic(redis, keys)
        backlog = RedisBacklog(redis, keys, plan.pool, max_length=1)
        self._plan = plan
        self._drains = Drains(registry)
        seat = Seat(plan.place, clock) if plan.place.deployments else None
        self._leader = seat if plan.mode == "builtin" else None
        """None: this process only advises"""
        self._notes = ScalingNotes(redis, keys)
        self._cell = Cell(registry, traffic, backlog, clock, plan.pool)
        self._autoscaler = Autoscaler(
            self._cell,
            self._drains,
            seat.cluster if seat else None,
            plan.view,
            clock,
            self._leads,
        )
        self._loops = Loops()
        page = make_page(self._autoscaler, self._loops, plan.mode)
        self._server = PageServer(page, plan.host, plan.port)

    def start(self) -> int:
        """Returns the port that it answers on; OSError when that is taken."""
        port = self._server.start()
        self._loops.start("decide", self._autoscaler.turn, self._plan.every_s)
        self._loops.start("tell", self._tell, TELL_S)
        if self._leader is not None:
            self._loops.start("drains", self._autoscaler.renew_drains, RENEW_S)
            self._loops.start("lease", self._leader.look, RENEW_LEASE_S)
        return port

    async def _tell(self) -> None:
        """The gateways; one that is to lead and does not keeps silent. StateUnavailableError."""
        told, pool = self._autoscaler.told, self._cell.pool
        if told is not None and pool and (self._leader is None or self._leads()):
            await self._notes.tell(pool, scaling(told, self._plan.mode))

    async def close(self) -> None:
        """Nobody drains on our word any more, and another may lead at once."""
        await self._server.close()
        await self._loops.close()
        with contextlib.suppress(BatonError):  # then both end by themselves
            if self._leads():
                await self._drains.end()
            if self._leader is not None:
                await self._leader.release()

    def _leads(self) -> bool:
        return self._leader is not None and self._leader.leads()
