"""Wires between real sockets, and their faults: each is seen to happen, or said not to have."""

import asyncio
import os
import random
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest

from services.cli.chaos import lane as lanes
from services.cli.chaos import wire_faults
from services.cli.chaos.cell import Cell, Worker
from services.cli.chaos.cell import wired as wired_plan
from services.cli.chaos.fault import NotInjectedError, Scene
from services.cli.chaos.lane import Damage, Hold, Lane, Late, MakeTrouble, Swallow, Tide, Way
from services.cli.chaos.load import Load
from services.cli.chaos.wire import WAYS, Disturbance, Passage, Wire
from services.cli.cluster.plan import Machine, make_plan
from shared.challenge import GREETING_BYTES, PROOF_BYTES, Challenge, Channel
from shared.errors import ProtocolError
from shared.protocol import SPOKEN

pytestmark = pytest.mark.anyio

SECRET = "a secret of the cell's own"  # noqa: S105
LIMIT_S = 5.0
SOON_S = 0.1
BIG = random.Random(1).randbytes(3 * 2**20)  # noqa: S311


class Echo:
    """Stands in for a worker: a challenge, then every byte comes back."""

    def __init__(self, channel: Channel = "link") -> None:
        self._channel = channel
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        self._server.close()
        await closed(self._writers)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        with suppress(OSError, EOFError, ProtocolError):
            challenge = Challenge(SECRET, self._channel, SPOKEN, dials=False)
            writer.write(challenge.greeting)
            for num_bytes in (GREETING_BYTES, PROOF_BYTES):
                writer.write(challenge.receive(await reader.readexactly(num_bytes)))
            while piece := await reader.read(2**16):
                writer.write(piece)
                await writer.drain()
            writer.write_eof()
        writer.close()


class Talk:
    """Of a gateway with a worker, through a wire."""

    every: ClassVar[list["Talk"]] = []

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.every.append(self)

    @classmethod
    async def open(cls, wire: Wire) -> "Talk":
        talk = cls(*await asyncio.open_connection("127.0.0.1", wire.port))
        challenge = Challenge(SECRET, wire.channel, SPOKEN, dials=True)
        talk.writer.write(challenge.greeting)
        talk.writer.write(challenge.receive(await talk.hear(GREETING_BYTES)))
        challenge.receive(await talk.hear(PROOF_BYTES))
        return talk

    async def hear(self, num_bytes: int) -> bytes:
        async with asyncio.timeout(LIMIT_S):
            return await self.reader.readexactly(num_bytes)

    async def hear_soon(self, num_bytes: int) -> bytes | None:
        with suppress(TimeoutError):
            async with asyncio.timeout(SOON_S):
                return await self.reader.readexactly(num_bytes)
        return None

    async def says(self, said: bytes) -> bytes:
        self.writer.write(said)
        return await self.hear(len(said))

    async def chatter(self) -> None:
        """Until it is cancelled; hung up on, from anew by whoever calls."""
        with suppress(OSError, EOFError):
            while True:
                self.writer.write(b"ping")
                await asyncio.sleep(0.005)
                await self.reader.read(2**16)


@pytest.fixture
async def wire() -> AsyncIterator[Wire]:
    async with wired("link") as made:
        yield made


@asynccontextmanager
async def wired(channel: Channel, worker: str = "decode-0") -> AsyncIterator[Wire]:
    echo = Echo(channel)
    made = Wire(worker, channel, await echo.start())
    await made.start()
    try:
        yield made
    finally:
        await made.close()
        await closed([talk.writer for talk in Talk.every])
        Talk.every.clear()
        await echo.close()


async def closed(writers: Iterable[asyncio.StreamWriter]) -> None:
    for writer in writers:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


def everything(make: MakeTrouble, *ways: Way) -> Disturbance:
    return Disturbance(make, ways or WAYS, lambda _: True)


def since(wire: Wire) -> dict[str, Tide]:
    (passage,) = wire.passages
    return {way: lane.since for way, lane in passage.lanes.items()}


async def test_in_calm_every_byte_passes(wire: Wire) -> None:
    talk = await Talk.open(wire)
    talk.writer.write(BIG)
    assert await talk.hear(len(BIG)) == BIG
    talk.writer.write(b"last")
    talk.writer.write_eof()
    assert await talk.reader.read() == b"last"
    await eventually(lambda: not wire.passages)


async def eventually(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not happened():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_reader_that_does_not_read_is_waited_for(wire: Wire) -> None:
    """And what it does not read is not kept by the wire."""
    talk = await Talk.open(wire)
    talk.writer.write(BIG * 8)
    await asyncio.sleep(SOON_S)
    assert await talk.hear(len(BIG) * 8) == BIG * 8


async def test_where_nobody_listens_who_dials_is_hung_up_on(wire: Wire) -> None:
    gone = Wire("decode-0", "link", wire.port)
    await gone.start()
    await wire.close()
    with pytest.raises((OSError, EOFError)):
        await Talk.open(gone)
    await gone.close()


async def test_a_connection_that_is_reset_is_reset_at_the_other_end(wire: Wire) -> None:
    talk = await Talk.open(wire)
    (passage,) = wire.passages
    passage.reset()
    with pytest.raises((ConnectionResetError, EOFError)):
        await talk.hear(1)
    await eventually(lambda: not wire.passages)


async def test_what_is_held_comes_in_the_end(wire: Wire) -> None:
    talk = await Talk.open(wire)
    wire.disturb(everything(Hold))
    talk.writer.write(b"hello")
    assert await talk.hear_soon(5) is None
    assert since(wire)["to"] == Tide(5, 0)
    wire.mend()
    assert await talk.hear(5) == b"hello"
    assert await talk.says(b"again") == b"again"


async def test_the_end_of_a_stream_is_passed_on_once(wire: Wire) -> None:
    """Held and read on, it would end the other way too."""
    talk = await Talk.open(wire)
    (passage,) = wire.passages
    wire.disturb(everything(Hold, "from"))
    talk.writer.write(b"last")
    talk.writer.write_eof()
    await eventually(lambda: passage.lanes["to"]._all_read)
    passage.lanes["to"].disturb(Hold)
    passage.lanes["to"].mend()
    await asyncio.sleep(SOON_S)
    wire.mend()
    assert await talk.reader.read() == b"last"


async def test_a_connection_that_is_made_meanwhile_stands_still_too(wire: Wire) -> None:
    wire.disturb(everything(Hold))
    opening = asyncio.create_task(Talk.open(wire))
    await asyncio.sleep(SOON_S)
    assert not opening.done()
    wire.mend()
    assert await (await opening).says(b"hello") == b"hello"


async def test_one_way_bytes_are_gone_and_the_connection_ends(wire: Wire) -> None:
    talk, silent = await Talk.open(wire), await Talk.open(wire)
    wire.disturb(everything(Swallow, "from"))
    talk.writer.write(b"hello")
    assert await talk.hear_soon(1) is None
    (passage,) = [one for one in wire.passages if one.lanes["from"].since.came]
    assert passage.lanes["from"].since == Tide(5, 0)
    assert not passage.lanes["to"].disturbed, "the worker has heard it"
    wire.mend()
    with pytest.raises((ConnectionResetError, EOFError)):
        await talk.hear(1)
    assert await silent.says(b"hello") == b"hello"


async def test_late_bytes_keep_their_order(wire: Wire) -> None:
    talk = await Talk.open(wire)
    calm_s = await wire_faults.least_round_trip(wire, SECRET)
    wire.disturb(everything(partial(Late, seconds=0.05)))
    assert await wire_faults.least_round_trip(wire, SECRET) > max(0.1, calm_s)
    talk.writer.write(BIG)
    assert await talk.hear(len(BIG)) == BIG
    talk.writer.write(b"first")
    await asyncio.sleep(0.01)
    wire.mend()
    assert await talk.says(b"then") == b"firs"
    assert await talk.hear(5) == b"tthen"
    assert await wire_faults.least_round_trip(wire, SECRET) < 0.1


async def test_a_late_end_of_a_stream_comes_behind_its_bytes(wire: Wire) -> None:
    talk = await Talk.open(wire)
    wire.disturb(everything(partial(Late, seconds=0.05)))
    talk.writer.write(b"last")
    talk.writer.write_eof()
    assert await talk.reader.read() == b"last"


async def test_damaged_bytes_arrive_as_many_as_are_counted(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "DAMAGED", 0.5)
    talk = await Talk.open(wire)
    wire.disturb(everything(partial(Damage, numbers=random.Random(1)), "to"))  # noqa: S311
    heard = await talk.says(BIG)
    num_changed = sum(a != b for a, b in zip(heard, BIG, strict=True))
    assert num_changed > 0
    await eventually(lambda: wire.num_changed == num_changed)
    wire.mend()
    assert await talk.says(BIG) == BIG
    talk.writer.close()
    await eventually(lambda: not wire.passages)
    assert wire.num_changed == num_changed, "of a connection that is over too"


async def test_bytes_that_are_on_their_way_have_not_changed_what_is_read() -> None:
    """The worker's kernel has no room for them."""
    deaf = socket.create_server(("127.0.0.1", 0))
    to_deaf = Wire("decode-0", "pull", deaf.getsockname()[1])
    await to_deaf.start()
    _, writer = await asyncio.open_connection("127.0.0.1", to_deaf.port)
    writer.write(BIG * 8)
    await asyncio.sleep(SOON_S)
    to_deaf.disturb(everything(partial(Damage, numbers=random.Random(1))))  # noqa: S311
    (passage,) = to_deaf.passages
    passage.lanes["to"].write(b"b", b"a")
    assert passage.lanes["to"].num_changed == 1
    assert to_deaf.num_changed == 0
    await to_deaf.close()
    await closed([writer])
    deaf.close()


def process(name: str, role: str) -> Any:
    return SimpleNamespace(pid=os.getpid(), spec=SimpleNamespace(name=name, role=role))


class WiredCell:
    """Stands in for a cell of a gateway and two decode workers, one of which is behind a wire."""

    def __init__(self, wire: Wire) -> None:
        gateway = process("gateway", "gateway")
        self.secret = SECRET
        self.wires = [wire]
        self.gateways = [SimpleNamespace(child=gateway)]
        self.workers = [Worker(process(f"decode-{index}", "decode"), "decode") for index in (0, 1)]
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
async def test_where_nothing_is_said_nothing_was_stopped(wire: Wire) -> None:
    await Talk.open(wire)
    with pytest.raises(NotInjectedError, match="do not go on"):
        await wire_faults.stand_still(scene(WiredCell(wire)))


@pytest.mark.usefixtures("short")
async def test_a_worker_that_answers_nobody_tells_nothing_of_its_wire(wire: Wire) -> None:
    wire.disturb(everything(Hold))
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
    """(worker, who dialled it)"""
    links = [("decode-0", "gateway"), ("prefill-0", "gateway-2"), ("prefill-1", "gateway")]
    passages = [
        SimpleNamespace(wire=SimpleNamespace(worker=worker), dialler=dialler)
        for worker, dialler in (*links, ("prefill-1", "decode-0"), ("prefill-1", "decode-1"))
    ]
    second = None if other is None else process(other, "")
    cut = wire_faults.Cut(process(one, ""), second, lambda passage: passage.dialler or "")
    found = {(each.wire.worker, each.dialler) for each in passages if cut.hits(cast(Passage, each))}
    assert found == hit
