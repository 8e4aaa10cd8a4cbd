"""The cell that faults happen to: two gateways, two prefill and two decode workers, a Redis."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import psutil

from services.cli.chaos.wires.wire import Wire
from services.cli.cluster.child import Child
from services.cli.cluster.local_cell import LocalCell, baton_command, running
from services.cli.cluster.output import Output
from services.cli.cluster.plan import Plan, WorkerRole
from services.cli.cluster.ports import local_url, reserve_port
from services.cli.gateway_client import GatewayClient
from shared.challenge import Channel
from shared.errors import BatonError
from shared.settings.groups import LOOPBACK, Settings
from shared.settings.load import changed
from shared.state.embedded import EmbeddedRedis
from shared.state.redis_client import RedisClient

ROLES: tuple[WorkerRole, ...] = ("prefill", "decode")
STATUS_S = 2.0
POLL_S = 0.1
GATEWAYS = "gateway", "gateway-2"
GIVES_UP = "the engine process ended"
"""the last words of a worker that does (shared.worker.lives)"""
PARTS = "fork server", "engine"
TEXT_PARTS = "text process", "second text process"
START_S = 60.0
STOP_S = 3.0
BY_PORT = "prefill-1"
"""hands over by tcp where connections lead through wires and the transport is open"""


@dataclass(frozen=True)
class Gateway:
    """One of the cell's."""

    child: Child
    url: str
    admin_url: str

    def status(self) -> dict[str, Any] | None:
        """None: it does not answer, or is not ready."""
        client = GatewayClient(self.admin_url, timeout_s=STATUS_S)
        with suppress(BatonError, OSError):
            if client.ready():
                return client.status()
        return None


@dataclass(frozen=True)
class Worker:
    """One of the cell's, whichever process it is now."""

    child: Child
    role: WorkerRole

    @property
    def name(self) -> str:
        return self.child.spec.name

    @property
    def processes(self) -> list[psutil.Process]:
        """io process, fork server and engine, as far as they live."""
        pid = self.child.pid
        with suppress(psutil.NoSuchProcess):
            if pid is not None:
                io = psutil.Process(pid)
                return [io, *io.children(recursive=True)]
        return []

    @property
    def engine(self) -> psutil.Process | None:
        processes = self.processes
        return processes[-1] if len(processes) > 2 else None


class Unrest(NamedTuple):
    """What is not as it should be where nobody asks anything."""

    text: str
    num_leaked: int = 0
    """blocks"""


@dataclass
class Cell:
    """What a fault may do something to."""

    gateways: Sequence[Gateway]
    workers: Sequence[Worker]
    redis: EmbeddedRedis
    state: RedisClient
    exits: Counter[str] = field(default_factory=Counter)
    """process -> exits that a fault caused"""
    data_losses_s: list[float] = field(default_factory=list)
    """when Redis lost what it had, on the monotonic clock"""
    spared: frozenset[str] = frozenset()
    """names of gateways and workers that no fault hits"""
    wires: Sequence[Wire] = ()
    """that connections lead through; none: they are direct"""
    secret: str = ""
    """of the cell"""

    @property
    def children(self) -> Iterator[Child]:
        yield from (gateway.child for gateway in self.gateways)
        yield from (worker.child for worker in self.workers)

    @property
    def spared_processes(self) -> dict[str, psutil.Process]:
        """By name; of a worker its io process, fork server and engine, of a gateway those that it
        has work on text."""
        found: dict[str, psutil.Process] = {}
        for child in self.children:
            if child.spec.name in self.spared and child.pid is not None:
                io = psutil.Process(child.pid)
                parts = TEXT_PARTS if child.spec.role == "gateway" else PARTS
                names = (child.spec.name, *(f"{child.spec.name}'s {part}" for part in parts))
                found |= dict(zip(names, [io, *io.children(recursive=True)], strict=False))
        return found

    def gateways_lived_s(self) -> float:
        """How long ago the oldest gateway started. The silence of others is known to it alone."""
        lived_s = [0.0]
        for gateway in self.gateways:
            with suppress(psutil.NoSuchProcess):
                if gateway.child.pid is not None:
                    lived_s.append(time.time() - psutil.Process(gateway.child.pid).create_time())
        return max(lived_s)

    def unexplained_exits(self) -> list[str]:
        """Of processes that ended more often than faults ended them, since this was last asked. A
        worker may give up whose engines die again and again, of whatever kinds of faults."""
        found = []
        for child in self.children:
            name = child.spec.name
            ends = [end for end in child.ends if GIVES_UP not in end]
            if len(ends) != self.exits[name]:
                found.append(
                    f"{name} ended {len(ends)} times, {self.exits[name]} of them by a fault"
                )
            child.ends.clear()
            del self.exits[name]
        return found

    async def ready(self) -> Mapping[str, list[Worker]]:
        """Role -> workers that every gateway would use now; nobody where a gateway is not ready."""
        names = [_ready_names(status) for status in await self._statuses()]
        common = set.intersection(*names)
        return {
            role: [one for one in self.workers if one.role == role and one.name in common]
            for role in ROLES
        }

    async def wait_whole(self, limit_s: float) -> bool:
        """Until everything is ready; whether it was in time."""
        return await self.wait_ready(len(self.workers) // len(ROLES), limit_s)

    async def wait_ready(self, least: int, limit_s: float) -> bool:
        """Until `least` workers of each role are ready; whether they were in time."""
        end_s = time.monotonic() + limit_s
        while any(len(found) < least for found in (await self.ready()).values()):
            if time.monotonic() > end_s:
                return False
            await asyncio.sleep(POLL_S)
        return True

    async def unrest(self) -> Unrest | None:
        """What is not as in a cell that nobody asks anything; None if all is."""
        for gateway, status in zip(self.gateways, await self._statuses(), strict=True):
            if status is None:
                return Unrest(f"{gateway.child.spec.name} does not answer")
            if num_live := status["requests"]["live"]:
                return Unrest(f"{gateway.child.spec.name} has {num_live} live requests")
            kv = [worker["kv"] for worker in status["workers"]]
            if len(kv) != len(self.workers):
                return Unrest(f"{gateway.child.spec.name} knows {len(kv)} workers")
            leaked = sum(each["total"] - each["free"] - each["cached"] for each in kv)
            if leaked:
                return Unrest(f"{leaked} blocks are held, or of no state", leaked)
        return None

    async def _statuses(self) -> list[dict[str, Any] | None]:
        """Of each gateway."""
        asking = (asyncio.to_thread(gateway.status) for gateway in self.gateways)
        return await asyncio.gather(*asking)


@asynccontextmanager
async def faulted_cell(
    plan: Plan, output: Output, spared: frozenset[str], wires: Sequence[Wire] = ()
) -> AsyncIterator[Cell]:
    """Ready. What dies is started again, as `baton up` does. `wires`: of the plan's workers."""
    with reserve_port(LOOPBACK, 0) as port, reserve_port(LOOPBACK, 0) as admin_port:
        async with running(plan, output, restart=True) as cell:
            await cell.wait_ready()
            second = _second_gateway(
                cell, output, *(each.getsockname()[1] for each in (port, admin_port))
            )
            task = asyncio.create_task(second.child.run())
            whole = _whole_cell(cell, second, spared, wires)
            try:
                if not await whole.wait_whole(START_S):
                    raise BatonError("the second gateway did not become ready")
                second.child.was_ready = True
                yield whole
            finally:
                await whole.state.close()
                await second.child.stop(STOP_S)
                await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def wired(plan: Plan) -> AsyncIterator[tuple[Plan, Sequence[Wire]]]:
    """The plan with a wire to each worker's port for gateways, and to the port for KV of those that
    hand over by a port. Where the transport is open, that is one prefill worker."""
    by_port = _by_port(plan.settings)
    wires, own = [], {}
    async with AsyncExitStack() as stack:
        for name in plan.worker_names:
            mine: dict[str, Any] = {}
            channels: list[tuple[Channel, str]] = [("link", "worker")]
            if by_port or (by_port is None and name == BY_PORT):
                channels.append(("pull", "transfer"))
            if by_port is None and name == BY_PORT:
                mine["transport"] = "tcp"
            for channel, prefix in channels:
                holder = stack.enter_context(reserve_port(LOOPBACK, 0))
                port = mine[f"{prefix}_port"] = holder.getsockname()[1]
                wires.append(Wire(name, channel, port))
                mine[f"{prefix}_advertise"] = await wires[-1].start()
                stack.push_async_callback(wires[-1].close)
            own[name] = mine
        yield replace(plan, own_settings=own), wires


def _by_port(settings: Settings) -> bool | None:
    """Whether workers hand over by a port; None: it is open."""
    transport = settings.handover.transport
    return None if transport == "auto" else transport != "mapped"


def _second_gateway(cell: LocalCell, output: Output, port: int, admin_port: int) -> Gateway:
    plan = replace(cell.plan, settings=changed(cell.plan.settings, admin_port=admin_port))
    assert cell.redis is not None
    spec = plan.gateway(cell.redis.url, port, GATEWAYS[1])
    child = Child(spec, baton_command(), output, restart=True)
    return Gateway(child, *(local_url(LOOPBACK, each) for each in (port, admin_port)))


def _whole_cell(
    cell: LocalCell, second: Gateway, spared: frozenset[str], wires: Sequence[Wire]
) -> Cell:
    first, *workers = cell.supervisor.children
    assert cell.redis is not None
    return Cell(
        [Gateway(first, cell.url, cell.admin_url), second],
        [Worker(child, _role(child)) for child in workers],
        cell.redis,
        RedisClient(cell.redis.url),
        spared=spared,
        wires=wires,
        secret=cell.plan.settings.network.cell_secret,
    )


def _role(child: Child) -> WorkerRole:
    assert child.spec.role != "gateway"
    return child.spec.role


def _ready_names(status: dict[str, Any] | None) -> set[str]:
    workers = (status or {}).get("workers", ())
    return {worker["id"] for worker in workers if worker["state"] == "ready"}
