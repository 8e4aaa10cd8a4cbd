"""Faults of wires: each is seen to happen, or said not to have."""

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest

from services.cli.chaos import wire_faults
from services.cli.chaos.cell import Cell, Worker
from services.cli.chaos.cell import wired as wired_plan
from services.cli.chaos.fault import NotInjectedError, Scene
from services.cli.chaos.load import Load
from services.cli.chaos.wires.lane import Damage, Hold, Lane, Late, Swallow
from services.cli.chaos.wires.wire import WAYS, Disturbance, Passage, Wire
from services.cli.cluster.plan import Machine, make_plan
from shared.errors import ProtocolError
from tests.support.pairs.wired_pair import BIG, SECRET, Talk, wired

pytestmark = pytest.mark.anyio


def process(name: str, role: str, pid: int | None = None) -> Any:
    return SimpleNamespace(pid=pid or os.getpid(), spec=SimpleNamespace(name=name, role=role))


class WiredCell:
    """Stands in for a cell of a gateway and two decode workers, one of which is behind a wire."""

    def __init__(self, wire: Wire, pid: int | None = None) -> None:
        """`pid`: of all its processes; else this one."""
        gateway = process("gateway", "gateway", pid)
        self.secret = SECRET
        self.wires = [wire]
        self.gateways = [SimpleNamespace(child=gateway)]
        self.workers = [
            Worker(process(f"decode-{index}", "decode", pid), "decode") for index in (0, 1)
        ]
        self.children = [gateway, *(worker.child for worker in self.workers)]
        self.spared = frozenset({"decode-1"})

    async def ready(self) -> dict[str, list[Worker]]:
        return {"prefill": [], "decode": self.workers}


def scene(cell: object) -> Scene:
    return Scene(cast(Cell, cell), Load([], "m", random.Random(1)), random.Random(2))  # noqa: S311


@asynccontextmanager
async def chatting(wire: Wire) -> AsyncIterator[None]:
    """Whoever is hung up on dials again."""

    async def chat() -> None:
        while True:
            with suppress(OSError, EOFError, TimeoutError, ProtocolError):
                await (await Talk.open(wire)).chatter()
            await asyncio.sleep(0.01)

    task = asyncio.create_task(chat())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    ("transport", "by_port", "becomes"),
    [
        ("auto", {"prefill-1"}, ["", "tcp", "", ""]),
        ("tcp", {"prefill-0", "prefill-1", "decode-0", "decode-1"}, ["tcp"] * 4),
        ("mapped", set(), ["mapped"] * 4),
    ],
)
async def test_workers_say_the_addresses_of_their_wires(
    transport: str, by_port: set[str], becomes: list[str]
) -> None:
    flags = {"transport": transport}
    plan = make_plan(flags, {}, Machine(2, 0), topology="pd", num_prefill=2, num_decode=2)
    async with wired_plan(plan) as (planned, wires):
        specs = planned.processes("r", 1)[1:]
        said = [dict(zip(spec.flags[::2], spec.flags[1::2], strict=True)) for spec in specs]
        links = [f"127.0.0.1:{wire.port}" for wire in wires if wire.channel == "link"]
        pulls = {wire.worker: f"127.0.0.1:{wire.port}" for wire in wires if wire.channel == "pull"}
    assert [one["--worker-advertise"] for one in said] == links
    assert set(pulls) == by_port
    for spec, one in zip(specs, said, strict=True):
        assert one.get("--transfer-advertise") == pulls.get(spec.name)
    assert [one.get("--transport", "") for one in said] == becomes


FAULTS = {
    "wire late": "late each way for",
    "wire stands still": "bytes stopped both ways for",
    "wire cut one way": "the worker for",
    "wire damaged": "bytes damaged",
}


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LATE_FOR_S", "STILL_S", "DAMAGED_S"):
        monkeypatch.setattr(wire_faults, name, (0.2, 0.3))
    monkeypatch.setattr(wire_faults, "LATE_S", (0.03, 0.05))
    monkeypatch.setattr(wire_faults, "SEEN_S", 1.0)
    monkeypatch.setattr(wire_faults, "PROBE_LIMIT_S", 0.5)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("kind", wire_faults.KINDS, ids=lambda kind: kind.name)
async def test_a_wire_is_broken_and_mended(kind: Any) -> None:
    async with wired("pull" if kind.name == "wire damaged" else "link") as wire:
        async with chatting(wire):
            told = await kind.inject(scene(WiredCell(wire)))
        assert FAULTS[kind.name] in told
        assert not list(wire.lanes)
        assert await (await Talk.open(wire)).says(BIG) == BIG


class Nothing:
    """A trouble that is none."""

    def __init__(self, lane: Lane, *_: object, **__: object) -> None:
        self._lane = lane

    def take(self, piece: bytes) -> None:
        self._lane.write(piece, piece)

    def end_stream(self) -> None:
        self._lane.write_end()

    def end(self) -> None:
        pass


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("kind", wire_faults.KINDS, ids=lambda kind: kind.name)
async def test_what_breaks_nothing_is_not_injected(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for trouble in (Hold, Swallow, Late, Damage):
        monkeypatch.setattr(wire_faults, trouble.__name__, Nothing)
    async with wired("pull" if kind.name == "wire damaged" else "link") as wire, chatting(wire):
        with pytest.raises(NotInjectedError):
            await kind.inject(scene(WiredCell(wire)))


class Leaky(Hold):
    """Lets bytes pass after a while."""

    def __init__(self, lane: Lane) -> None:
        super().__init__(lane)
        asyncio.get_running_loop().call_later(0.1, self.end)


@pytest.mark.usefixtures("short")
async def test_a_wire_that_stands_still_for_a_moment_only_is_noticed(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire_faults, "Hold", Leaky)
    async with chatting(wire):
        with pytest.raises(NotInjectedError, match="bytes went on"):
            await wire_faults.stand_still(scene(WiredCell(wire)))


@pytest.mark.usefixtures("short")
async def test_a_wire_is_not_late_where_only_the_probe_was(wire: Wire) -> None:
    """Nobody of the cell has a connection through it."""
    async with chatting(wire):
        with pytest.raises(NotInjectedError, match="bytes that are late"):
            await wire_faults.be_late(scene(WiredCell(wire, pid=1)))


@pytest.mark.usefixtures("short")
async def test_where_nothing_is_said_nothing_was_stopped(wire: Wire) -> None:
    await Talk.open(wire)
    with pytest.raises(NotInjectedError, match="do not go on"):
        await wire_faults.stand_still(scene(WiredCell(wire)))


@pytest.mark.usefixtures("short")
async def test_a_worker_that_answers_nobody_tells_nothing_of_its_wire(wire: Wire) -> None:
    wire.disturb(Disturbance(Hold, WAYS, lambda _: True))
    with pytest.raises(NotInjectedError, match="answers no challenge"):
        await wire_faults.least_round_trip(wire, SECRET)


@pytest.mark.parametrize("kind", wire_faults.KINDS, ids=lambda kind: kind.name)
async def test_without_wires_there_is_nothing_to_do(kind: Any, wire: Wire) -> None:
    cell = WiredCell(wire)
    cell.wires = []
    assert await kind.inject(scene(cell)) is None


@pytest.mark.parametrize(
    ("one", "other", "hit"),
    [
        ("decode-0", None, {("decode-0", "gateway"), ("prefill-1", "decode-0")}),
        ("gateway", None, {("decode-0", "gateway"), ("prefill-1", "gateway")}),
        ("gateway", "decode-0", {("decode-0", "gateway")}),
        ("decode-0", "prefill-1", {("prefill-1", "decode-0")}),
    ],
)
def test_a_cut_is_between_those_that_it_names(
    one: str, other: str | None, hit: set[tuple[str, str]]
) -> None:
    """(worker, whoever dialled it)"""
    links = [("decode-0", "gateway"), ("prefill-0", "gateway-2"), ("prefill-1", "gateway")]
    passages = [
        SimpleNamespace(wire=SimpleNamespace(worker=worker), dialler=dialler)
        for worker, dialler in (*links, ("prefill-1", "decode-0"), ("prefill-1", "decode-1"))
    ]
    second = None if other is None else process(other, "")
    cut = wire_faults.Cut(process(one, ""), second, lambda passage: passage.dialler or "")
    found = {(each.wire.worker, each.dialler) for each in passages if cut.hits(cast(Passage, each))}
    assert found == hit
