"""Wires between real sockets: what becomes of bytes, and what the kernel counts of them."""

import asyncio
import random
import socket
from collections.abc import Callable
from functools import partial

import pytest

from services.cli.chaos import wire_faults
from services.cli.chaos.wires import lane as lanes
from services.cli.chaos.wires.lane import Damage, Hold, Late, MakeTrouble, Swallow, Tide, Way
from services.cli.chaos.wires.wire import WAYS, Disturbance, Wire
from tests.support.pairs.wired_pair import BIG, LIMIT_S, SECRET, SOON_S, Talk, closed

pytestmark = pytest.mark.anyio


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
