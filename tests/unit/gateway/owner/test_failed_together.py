"""Requests that one fault sends back together: the shortest go on first, no one waits forever."""

from types import SimpleNamespace
from typing import cast

import pytest

from services.gateway.owner.counters import DispatchCounters
from services.gateway.owner.live_request import LiveRequest
from services.gateway.owner.waiting_line import PATIENCE, WaitingLine
from shared.protocol import Assign, Pong, Receive
from shared.queue.memory_backlog import MemoryBacklog
from tests.support.fakes.manual_clock import ManualClock
from tests.unit.gateway.owner.gateway_bench import FULL, Bench, FakeWorker, settle, started
from tests.unit.gateway.owner.test_saturation import has_room

pytestmark = pytest.mark.anyio

LENGTHS = {"long": 200, "short": 20, "middle": 100}


async def decoding(bench: Bench) -> tuple[FakeWorker, FakeWorker]:
    """Prefill, and decode with a stream of each length under way; a second decode worker lives."""
    p, d0, d1 = (FakeWorker(*of) for of in (("prefill", "p0"), ("decode", "d0"), ("decode", "d1")))
    await bench.add(p, d0)
    for rid, length in LENGTHS.items():
        bench.door.submit(bench.request(rid, num_prompt=length, max_tokens=50))
        p.start()
        p.tokens(0, 7)
        d0.run(d0.last(Receive), 1, 8)
    await bench.add(d1)
    assert order(p) == list(LENGTHS)
    return p, d0


def order(worker: FakeWorker) -> list[str]:
    return [assign.work.attempt.rid for assign in worker.all(Assign)]


async def test_the_shortest_is_assigned_first() -> None:
    async with started(Bench()) as bench:
        p, d0 = await decoding(bench)
        d0.die()
        await settle()
        assert order(p)[3:] == ["short", "middle", "long"]


async def test_the_shortest_gets_the_room_that_comes() -> None:
    async with started(Bench()) as bench:
        p, d0 = await decoding(bench)
        p.load = FULL
        p.say(Pong(1, p.load))
        d0.die()
        await settle()
        assert order(p)[3:] == []
        bench.clock.advance(0.1)
        for room_tokens, expected in ((30, ["short"]), (110, ["middle"]), (210, ["long"])):
            before = len(order(p))
            has_room(p, room_tokens)
            bench.request_clock.tick()
            assert order(p)[before:] == expected
            p.start()


class _Line:
    """Of requests that failed."""

    def __init__(self) -> None:
        backlog, clock = MemoryBacklog(9, {}), ManualClock()
        self.line = WaitingLine("g.1", backlog, DispatchCounters(), clock, lambda: None)

    def join(self, rid: str, num_tokens: int, *, has_spoken: bool = True) -> None:
        live = SimpleNamespace(
            rid=rid,
            request=SimpleNamespace(
                follows=False,
                priority=3,
                tenant="t",
                weight=1,
                sampling=SimpleNamespace(max_tokens=9),
            ),
            block_hashes=(),
            returned=False,
            machine=SimpleNamespace(epoch=1, waits=True, token_ids=[7] * has_spoken),
            work=SimpleNamespace(token_ids=range(num_tokens)),
            receipt=SimpleNamespace(accepted_ns=len(self.line)),
        )
        self.line.join(cast("LiveRequest", live), no_room=False)

    def order(self) -> list[str]:
        return [live.rid for live in self.line.popped()]


def test_a_long_one_lets_only_so_much_go_before_it() -> None:
    line = _Line()
    line.join("long", 100)
    for number in range(100):
        line.join(f"short-{number}", 10)
    num_before = line.order().index("long")
    assert 0 < num_before * 10 <= PATIENCE * 100


def test_equal_ones_keep_their_order_and_who_reads_goes_before_who_waits_for_token_1() -> None:
    line = _Line()
    line.join("new", 5, has_spoken=False)
    line.join("later", 1, has_spoken=False)
    for rid in "abc":
        line.join(rid, 10)
    assert line.order() == [*"abc", "new", "later"]
