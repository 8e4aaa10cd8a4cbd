"""Connections between the cell's processes that are late, stand still, lose or change bytes.

They lead through wires (`wire`), of which everything is mended in the end. Nothing is closed but
what has lost bytes.
"""

import asyncio
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import NamedTuple

import psutil

from services.cli.chaos.cell import Worker
from services.cli.chaos.fault import Kind, NotInjectedError, Scene, until
from services.cli.chaos.process_faults import spare_ones
from services.cli.chaos.wires.lane import Damage, Hold, Lane, Late, MakeTrouble, Swallow, Way
from services.cli.chaos.wires.wire import WAYS, Disturbance, Passage, Wire
from services.cli.cluster.child import Child
from shared.challenge import GREETING_BYTES, PROOF_BYTES, Challenge
from shared.errors import ProtocolError
from shared.protocol import SPOKEN
from shared.settings.groups import LOOPBACK

LATE_S = 0.005, 0.05
LATE_FOR_S = 1.0, 10.0
STILL_S = 0.3, 6.0
DAMAGED_S = 0.5, 3.0
SEEN_S = 20.0
"""until bytes come that are to wait: a hand-over by tcp is not always under way"""
NUM_PROBES = 5
PROBE_LIMIT_S = 2.0
PROBE = "probe"
"""dials as gateways and workers do"""


class Cut(NamedTuple):
    """Through which passages it goes: of one process with all others, or with one."""

    one: Child
    """the one that dials, if there is another"""
    other: Child | None
    names: Callable[[Passage], str]
    """of whoever dialled"""

    def hits(self, passage: Passage) -> bool:
        owner, one = passage.wire.worker, self.one.spec.name
        if self.other is None:
            return owner == one or self.names(passage) == one
        return owner == self.other.spec.name and self.names(passage) == one

    def __str__(self) -> str:
        other = "all others" if self.other is None else self.other.spec.name
        return f"{self.one.spec.name} - {other}"


async def be_late(scene: Scene) -> str | None:
    """Every byte, each way. Seen by the time that a challenge takes there and back."""
    cut = _cut(scene, await scene.cell.ready())
    if cut is None:
        return None
    late_s, seconds = scene.seconds(*LATE_S), scene.seconds(*LATE_FOR_S)
    wire = scene.numbers.choice([one for one in scene.cell.wires if _is_probed(one, cut)])
    calm_s = await least_round_trip(wire, scene.cell.secret)

    def hits(passage: Passage) -> bool:
        return cut.hits(passage) or (passage.wire is wire and cut.names(passage) == PROBE)

    end_s = time.monotonic() + seconds
    with _disturbed(scene.cell.wires, partial(Late, seconds=late_s), WAYS, hits):
        seen_s = await least_round_trip(wire, scene.cell.secret)
        took = f"{seen_s * 1e3:.1f} ms there and back, {calm_s * 1e3:.1f} before"
        if seen_s < max(2 * late_s, calm_s + late_s):
            raise NotInjectedError(f"{cut}: {took}")
        await until(f"{cut}: bytes that are late", lambda: _carries_bytes(scene, cut), SEEN_S)
        await asyncio.sleep(end_s - time.monotonic())
    return f"{cut}: {late_s * 1e3:.0f} ms late each way for {seconds:.1f} s ({took})"


async def stand_still(scene: Scene) -> str | None:
    """Nothing passes, and nothing is lost: what waited goes on."""
    return await _stop_bytes(scene, Hold, WAYS)


async def cut_one_way(scene: Scene) -> str | None:
    """What is said one way is gone; the other way all is well."""
    return await _stop_bytes(scene, Swallow, (scene.numbers.choice(WAYS),))


async def damage(scene: Scene) -> str | None:
    """Bits of hand-overs by a port; what gateways and workers say has no checksum."""
    wires = [one for one in scene.cell.wires if _carries_kv(one) and scene.may_hit(one.worker)]
    if not wires:
        return None
    numbers = random.Random(scene.numbers.getrandbits(64))  # noqa: S311
    seconds, before = scene.seconds(*DAMAGED_S), _num_changed(wires)
    with _disturbed(wires, partial(Damage, numbers=numbers), WAYS, lambda _: True):
        await until("damage where it was read", lambda: _num_changed(wires) > before, SEEN_S)
        await asyncio.sleep(seconds)
    names = ", ".join(wire.worker for wire in wires)
    return f"KV of {names}: {_num_changed(wires) - before} bytes damaged"


KINDS = (
    Kind("wire late", be_late, least_ready=2, on_wires=True),
    Kind("wire stands still", stand_still, least_ready=2, on_wires=True),
    Kind("wire cut one way", cut_one_way, least_ready=2, on_wires=True),
    Kind("wire damaged", damage, least_ready=2, on_wires=True),
)


async def least_round_trip(wire: Wire, secret: str) -> float:
    """Of some challenges, through the wire to the worker and back: those who answer may be busy.
    NotInjectedError if none is answered."""
    found = []
    for _ in range(NUM_PROBES):
        with suppress(OSError, TimeoutError, EOFError, ProtocolError):
            async with asyncio.timeout(PROBE_LIMIT_S):
                found.append(await _round_trip(wire, secret))
    if not found:
        raise NotInjectedError(f"{wire.worker} answers no challenge through the wire")
    return min(found)


async def _round_trip(wire: Wire, secret: str) -> float:
    """From our proof on until the worker's is here."""
    challenge = Challenge(secret, wire.channel, SPOKEN, dials=True)
    reader, writer = await asyncio.open_connection(LOOPBACK, wire.port)
    try:
        writer.write(challenge.greeting)
        proof = challenge.receive(await reader.readexactly(GREETING_BYTES))
        begin_s = time.monotonic()
        writer.write(proof)
        challenge.receive(await reader.readexactly(PROOF_BYTES))
        return time.monotonic() - begin_s
    finally:
        writer.close()


async def _stop_bytes(scene: Scene, make: MakeTrouble, ways: tuple[Way, ...]) -> str | None:
    """For a while, once bytes have come that would go on."""
    cut = _cut(scene, await scene.cell.ready())
    if cut is None:
        return None
    seconds = scene.seconds(*STILL_S)
    with _disturbed(scene.cell.wires, make, ways, cut.hits):
        await until(
            f"{cut}: bytes that come and do not go on",
            lambda: any(_is_stopped(lane) for lane in _lanes(scene)),
            SEEN_S,
        )
        num_stopped = _num_stopped(scene)
        await asyncio.sleep(seconds)
        num_stopped = max(num_stopped, _num_stopped(scene))
        num_passed = sum(lane.since.went for lane in _lanes(scene))
    if num_passed:
        raise NotInjectedError(f"{cut}: {num_passed} bytes went on")
    way = "both ways" if len(ways) == len(WAYS) else f"{ways[0]} the worker"
    return f"{cut}: {num_stopped} bytes stopped {way} for {seconds:.1f} s"


def _carries_bytes(scene: Scene, cut: Cut) -> bool:
    """Of the cell's own, since the trouble began."""
    return any(
        lane.disturbed and lane.since.came > 1
        for wire in scene.cell.wires
        for passage in wire.passages
        if cut.names(passage) != PROBE and cut.hits(passage)
        for lane in passage.lanes.values()
    )


def _is_stopped(lane: Lane) -> bool:
    """Of bytes that were said: the end of a stream counts as one too."""
    since = lane.since
    return since.came > 1 and since.went == 0


def _num_stopped(scene: Scene) -> int:
    """Bytes, of connections that are open."""
    return sum(lane.since.came for lane in _lanes(scene))


def _lanes(scene: Scene) -> Iterator[Lane]:
    """Those that are disturbed."""
    for wire in scene.cell.wires:
        yield from wire.lanes


@contextmanager
def _disturbed(
    wires: Iterable[Wire],
    make: MakeTrouble,
    ways: tuple[Way, ...],
    hits: Callable[[Passage], bool],
) -> Iterator[None]:
    disturbance = Disturbance(make, ways, hits)
    for wire in wires:
        wire.disturb(disturbance)
    try:
        yield
    finally:
        for wire in wires:
            wire.mend()


def _cut(scene: Scene, ready: Mapping[str, Sequence[Worker]]) -> Cut | None:
    """Off goes a worker or a gateway from all others, a gateway from a worker, or a decode worker
    from a prefill worker."""
    if not scene.cell.wires:
        return None
    workers = [one.child for found in ready.values() for one in spare_ones(scene, list(found))]
    gateways = [one.child for one in scene.cell.gateways if scene.may_hit(one.child.spec.name)]
    sources = {wire.worker for wire in scene.cell.wires if _carries_kv(wire)}
    pairs = [(one, other) for one in gateways for other in workers]
    pulls = [
        (one, other)
        for one in workers
        for other in workers
        if one.spec.role == "decode" and other.spec.role == "prefill" and other.spec.name in sources
    ]
    alone = [(child, None) for child in (*workers, *gateways)]
    groups = [group for group in (alone, pairs, pulls) if group]
    if not groups:
        return None
    one, other = scene.numbers.choice(scene.numbers.choice(groups))
    return Cut(one, other, partial(_dialler, list(scene.cell.children)))


def _is_probed(wire: Wire, cut: Cut) -> bool:
    """Whether what the cut goes through includes it."""
    if cut.other is not None:
        return wire.worker == cut.other.spec.name and _carries_kv(wire) == (
            cut.one.spec.role != "gateway"
        )
    if cut.one.spec.role == "gateway":
        return not _carries_kv(wire)
    return wire.worker == cut.one.spec.name


def _carries_kv(wire: Wire) -> bool:
    return wire.channel == "pull"


def _num_changed(wires: Iterable[Wire]) -> int:
    return sum(wire.num_changed for wire in wires)


def _dialler(children: Iterable[Child], passage: Passage) -> str:
    """Its name, found once; empty: it has gone."""
    if passage.dialler is None:
        pids = {child.spec.name: child.pid for child in children} | {PROBE: os.getpid()}
        found = (
            name
            for name, pid in pids.items()
            if pid is not None and passage.dialler_port in _dialling_ports(pid, passage.wire.port)
        )
        passage.dialler = next(found, "")
    return passage.dialler


def _dialling_ports(pid: int, port: int) -> set[int]:
    """From which that process has dialled this one."""
    with suppress(psutil.Error):
        return {
            item.laddr.port
            for item in psutil.Process(pid).net_connections("tcp")
            if item.raddr and item.raddr.port == port
        }
    return set()
