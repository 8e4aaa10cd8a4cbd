"""Which of the registered pools of a model a gateway serves."""

import logging
from dataclasses import replace

import pytest

from services.gateway.owner.links.served_pool import ServedPool
from services.gateway.owner.request_clock import POOL_GONE_S
from shared.errors import OverloadedError
from shared.protocol import Assign
from shared.state.registry import POLL_INTERVAL_S, WorkerEntry
from tests.unit.gateway.owner.gateway_bench import Bench, FakeWorker, settle, started

A, B = "org/m@rev:a", "org/m@rev:b"


def entries(pool: str, number: int, block_size: int = 16) -> list[WorkerEntry]:
    return [
        WorkerEntry(f"w{at}", f"w{at}.1", "decode", "h", 1, pool, 1, "1", "m", 64, block_size)
        for at in range(number)
    ]


def test_the_pool_with_most_workers_then_the_same_one_as_long_as_it_lives(
    caplog: pytest.LogCaptureFixture,
) -> None:
    followed: list[str] = []
    served = ServedPool("org/m", on_change=followed.append)
    with caplog.at_level(logging.INFO):
        served.note({}, may_change=True)
        assert (served.name, served.others) == ("", ())
        served.note({A: entries(A, 1), B: entries(B, 2, 8)}, may_change=False)
        assert (served.name, served.block_size, served.others) == (B, 8, (A,))
        assert f"does not use: {A}" in caplog.text
        served.note({A: entries(A, 9), B: entries(B, 1, 8)}, may_change=True)
        assert served.name == B
        served.note({A: entries(A, 9), B: []}, may_change=False)
        assert (served.name, served.others) == (B, (A,))
        served.note({A: entries(A, 9), B: []}, may_change=True)
        assert (served.name, served.block_size, served.others) == (A, 16, ())
    assert followed == [B, A]


def test_a_pool_belongs_to_the_model_it_names() -> None:
    served = ServedPool("org/m")
    assert served.has(A)
    assert not served.has("org/m2@rev:a") and not served.has("org/m")


@pytest.mark.anyio
async def test_workers_of_another_name_are_told_while_there_is_none_of_this_one() -> None:
    """A pool that is listed and has no worker left is not."""
    bench, stray = Bench(), FakeWorker("decode", "d1")
    other = replace(stray.entry(7), pool="other@rev:a", model="other")
    async with started(bench):
        await bench.registry.register(other)
        bench.clock.advance(POLL_INTERVAL_S)
        await settle()
        told = "the workers that are registered serve other, this gateway serves demo: give both"
        assert told in bench.door.trouble()
        await bench.add(FakeWorker("decode", "d0"))
        assert bench.door.trouble() == ""


@pytest.mark.anyio
async def test_a_gateway_that_knows_no_pool_finds_what_workers_register() -> None:
    """Whatever type they compute in: it may have no GPU, and derives nothing from that."""
    worker = FakeWorker("decode", "d0")
    bench = Bench()
    bench.served.name, bench.served.block_size = "", 0
    async with started(bench):
        await bench.add(worker)
        assert (bench.served.name, bench.served.block_size) == (worker.hello().pool, 16)
        bench.door.submit(bench.request())
        assert worker.last(Assign).work.attempt.rid == "r1"


@pytest.mark.anyio
async def test_what_began_on_a_pool_that_is_gone_ends_so_that_the_next_can_be_served() -> None:
    worker = FakeWorker("decode", "d0")
    async with started(Bench()) as bench:
        await bench.add(worker)
        generation = bench.door.submit(bench.request())
        worker.die()
        bench.clock.advance(POOL_GONE_S)
        bench.request_clock.tick()
        assert not bench.core.frames.may_change_pool(), "its worker may come back"
        bench.served.others = ("demo@other:pool",)
        bench.request_clock.tick()
        await settle()
        assert bench.core.frames.may_change_pool()
        with pytest.raises(OverloadedError, match="were replaced by others"):
            await anext(generation)
