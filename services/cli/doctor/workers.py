"""The workers that the registry names: reachable, of the cell, and of the pool that is served."""

import asyncio
import socket
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from services.cli.doctor.dial import hear_hello, try_kv_port, try_kv_socket
from services.cli.doctor.finding import Finding, fail, ok, warn
from shared.challenge import OtherSecretError, OtherVersionError
from shared.errors import BatonError
from shared.protocol import Hello
from shared.state.registry import WorkerEntry

ONE_CELL = "start all processes of the cell, and this command, with the same BATON_CELL_SECRET"
REACH = (
    "open that port between the hosts, or give the worker the address that others reach: --host, "
    "or --worker-advertise behind a NAT"
)
NEIGHBOURS = "processes of a cell, and this command, are at most one version apart"
MAX_DIALS = 16


@dataclass(frozen=True)
class WorkerFacts:
    """What the registry says of a worker, and what its ports do."""

    entry: WorkerEntry
    hello: Hello | None = None
    link_error: str = ""
    link_cure: str = REACH
    is_other_cell: bool = False
    """it proves another secret"""
    port_error: str = ""
    socket_error: str = ""
    """of where its KV is pulled from; empty also where there is no such place"""
    same_host: bool = True

    @property
    def name(self) -> str:
        return f"worker {self.entry.worker_id}"


@dataclass(frozen=True)
class Served:
    """What the gateway serves, as far as is known."""

    pool: str = ""
    block_size: int = 0
    release: str = ""
    linked: frozenset[str] | None = None
    """incarnations; None: nobody knows"""

    @property
    def model(self) -> str:
        return self.pool.rpartition("@")[0]


async def gather_workers(entries: Sequence[WorkerEntry], cell_secret: str) -> list[WorkerFacts]:
    places = asyncio.Semaphore(MAX_DIALS)

    async def look(entry: WorkerEntry) -> WorkerFacts:
        async with places:
            return await _look(entry, cell_secret)

    return list(await asyncio.gather(*map(look, entries)))


def judge_worker(facts: WorkerFacts, served: Served, *, has_secret: bool) -> list[Finding]:
    """Its faults, or one line that says it is well. `has_secret`: whether one was given. What
    another model's worker lacks is for its own gateway to find."""
    found = _judge_pool(facts, served)
    if found and facts.entry.model != served.model:
        return found
    if facts.is_other_cell and has_secret:
        seen = f"answers at {_address(facts.entry)}, and its cell secret is another"
        found.append(fail(facts.name, seen, ONE_CELL))
    elif facts.link_error and not facts.is_other_cell:
        found.append(
            fail(
                facts.name,
                f"link port {_address(facts.entry)} cannot be used from here: {facts.link_error}",
                facts.link_cure,
            )
        )
    found += _judge_kv(facts) + _judge_state(facts)
    if found:
        return found
    if facts.hello is None:
        seen = "its link port answers; BATON_CELL_SECRET is needed to ask for more"
        return [ok(facts.name, seen)]
    kv = f", KV at {facts.hello.transfer_address}" if facts.hello.transfer_address else ""
    return [ok(facts.name, f"{facts.entry.role} at {_address(facts.entry)}{kv}")]


def served_pool(
    entries: Collection[WorkerEntry], linked: frozenset[str] | None, release: str, model: str = ""
) -> Served:
    """By the workers that the gateway is linked to; where there are none, by the pool of its
    `model`, if that is known, that has most workers, as a gateway does."""
    of_linked = [entry.pool for entry in entries if entry.incarnation in (linked or ())]
    of_model = [entry.pool for entry in entries if not model or entry.model == model]
    pools = of_linked or of_model
    if not pools:
        return Served(f"{model}@", 0, release, linked)
    pool = max(sorted(set(pools)), key=pools.count)
    block_size = next(entry.block_size for entry in entries if entry.pool == pool)
    return Served(pool, block_size, release, linked)


def _judge_pool(facts: WorkerFacts, served: Served) -> list[Finding]:
    entry = facts.entry
    if served.pool and entry.pool != served.pool:
        model = served.model
        if entry.model != model:
            return [
                warn(
                    facts.name,
                    f"serves {entry.model}, this gateway {model}",
                    "fine if another gateway serves that; else give both the same --model, and "
                    "--served-model-name if one has it",
                )
            ]
        return [fail(facts.name, *_difference(entry, served))]
    if served.release and entry.version != served.release:
        seen = f"runs Baton {entry.version}, the gateway {served.release}"
        return [warn(facts.name, seen, "finish the upgrade: both of one release")]
    if served.linked is not None and entry.incarnation not in served.linked:
        seen = "is registered, and the gateway has no link to it"
        cure = "ask again in a few seconds; then see `baton status` and the gateway's log"
        return [warn(facts.name, seen, cure)]
    return []


def _difference(entry: WorkerEntry, served: Served) -> tuple[str, str]:
    """Why a worker of the same name is in another pool, and what to do."""
    own, theirs = (pool.rpartition("@")[2].partition(":")[0] for pool in (entry.pool, served.pool))
    unused = "the gateway uses no worker of another pool"
    if own != theirs:
        return f"has other weights for {entry.model}: {unused}", "one checkpoint for all workers"
    if entry.block_size != served.block_size:
        seen = f"has blocks of {entry.block_size} tokens, the gateway's of {served.block_size}"
        return f"{seen}: {unused}", f"start it with --block-size {served.block_size}"
    return f"has another KV type: {unused}", "the same --dtype and --device for all"


def _judge_kv(facts: WorkerFacts) -> list[Finding]:
    """One way to its KV is enough, unless the other is a port that others would use."""
    if facts.hello is None:
        return []
    address, found = facts.hello.transfer_address, []
    if address.port and facts.port_error:
        found.append(
            fail(
                facts.name,
                f"KV port {address.port} cannot be used from here: {facts.port_error}",
                "open --transfer-port between the hosts, or --transfer-advertise behind a NAT",
            )
        )
    if address.socket and facts.same_host and facts.socket_error and not address.port:
        found.append(
            fail(
                facts.name,
                f"KV socket {address.socket} cannot be used: {facts.socket_error}",
                "mount its --transfer-dir for all workers of the host, or --transport auto",
            )
        )
    return found


def _judge_state(facts: WorkerFacts) -> list[Finding]:
    if facts.entry.unready:
        cure = "see what is wrong with that pair: `baton status` names the way between them"
        return [fail(facts.name, f"is not ready: {facts.entry.unready}", cure)]
    load = facts.hello.load if facts.hello else None
    if load is None or load.state == "ready":
        return []
    cure = "nothing if that is meant; a new worker takes its place"
    return [warn(facts.name, f"is {load.state}, and takes no work", cure)]


async def _look(entry: WorkerEntry, cell_secret: str) -> WorkerFacts:
    try:
        hello = await hear_hello(entry.host, entry.port, cell_secret)
    except OtherSecretError:
        return WorkerFacts(entry, link_error="another secret", is_other_cell=True)
    except OtherVersionError as error:
        return WorkerFacts(entry, link_error=str(error), link_cure=NEIGHBOURS)
    except BatonError as error:
        return WorkerFacts(entry, link_error=str(error))
    if hello.incarnation != entry.incarnation:
        return WorkerFacts(entry, link_error="another worker answers there")
    address, same_host = hello.transfer_address, hello.host == socket.gethostname()
    port_error = socket_error = ""
    try:
        if address.port:
            await try_kv_port(address.port, cell_secret)
    except BatonError as error:
        port_error = str(error)
    try:
        if address.socket and same_host:
            await try_kv_socket(address.socket, cell_secret)
    except BatonError as error:
        socket_error = str(error)
    return WorkerFacts(
        entry, hello, port_error=port_error, socket_error=socket_error, same_host=same_host
    )


def _address(entry: WorkerEntry) -> str:
    return f"[{entry.host}]:{entry.port}" if ":" in entry.host else f"{entry.host}:{entry.port}"
