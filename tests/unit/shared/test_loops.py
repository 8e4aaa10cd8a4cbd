"""A loop outlives every turn; one that does not do its work is named."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from shared import loops as loops_module
from shared.errors import StateUnavailableError
from shared.loops import FAILING_LIMIT_S, Loops
from shared.repeats import FORGET_S, Repeats
from tests.support.fakes.manual_clock import ManualClock

pytestmark = pytest.mark.anyio


class Turns:
    """Turns that raise what the test says."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.num = 0
        self._taken = asyncio.Event()

    async def __call__(self) -> None:
        self.num += 1
        self._taken.set()
        if self.error is not None:
            raise self.error

    async def wait(self, num: int) -> None:
        """Until `num` more were taken."""
        async with asyncio.timeout(5):
            for _ in range(num):
                self._taken.clear()
                await self._taken.wait()


class Bench:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.loops = Loops(self.clock)
        self.turns = Turns()
        self.loops.start("work", self.turns)


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr(loops_module, "LONGEST_PAUSE_S", 0.01)
    monkeypatch.setattr(loops_module, "LONGEST_AWAY_PAUSE_S", 0.01)
    bench = Bench()
    yield bench
    await bench.loops.close()


@pytest.mark.parametrize(
    "error", [ValueError("x"), StateUnavailableError("x"), asyncio.CancelledError()]
)
async def test_a_turn_that_raises_ends_no_loop(bench: Bench, error: BaseException) -> None:
    bench.turns.error = error
    await bench.turns.wait(3)
    bench.turns.error = None
    await bench.turns.wait(3)
    assert bench.loops.failures()["work"] >= 2
    assert bench.loops.trouble() == ""


async def test_trouble_is_a_fault_that_lasts_and_ends_with_a_success(bench: Bench) -> None:
    bench.turns.error = ValueError("x")
    await bench.turns.wait(3)
    assert bench.loops.trouble() == ""
    bench.clock.advance(FAILING_LIMIT_S)
    assert bench.loops.trouble() == "work fails for 30 s (ValueError)"
    bench.turns.error = None
    await bench.turns.wait(2)
    assert bench.loops.trouble() == ""


async def test_who_waits_for_redis_is_well(bench: Bench) -> None:
    bench.turns.error = StateUnavailableError("away")
    await bench.turns.wait(3)
    bench.clock.advance(10 * FAILING_LIMIT_S)
    await bench.turns.wait(3)
    assert bench.loops.trouble() == ""


async def test_who_waits_says_for_what_and_how_often_it_tried(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.turns.error = StateUnavailableError("Redis is away")
    await bench.turns.wait(3)
    said = [record.message for record in caplog.records]
    assert said[:2] == ["work waits: Redis is away", "work waits: Redis is away, tried 2 times"]


async def test_a_loop_that_has_ended_is_trouble(bench: Bench) -> None:
    bench.turns.error = BaseExceptionGroup("", [GeneratorExit()])
    async with asyncio.timeout(5):
        while not bench.loops.trouble():  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert bench.loops.trouble() == "work has ended"


async def test_equal_failures_are_logged_ever_more_rarely(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    bench.turns.error = ValueError("x")
    await bench.turns.wait(40)
    assert len([record for record in caplog.records if "work failed" in record.message]) <= 7


def test_repeats_are_news_again_after_a_quiet_minute() -> None:
    clock = ManualClock()
    repeats = Repeats(clock.monotonic_s)
    assert [repeats.due("x") for _ in range(9)] == [1, 2, 0, 4, 0, 0, 0, 8, 0]
    assert repeats.due("y") == 1
    clock.advance(FORGET_S + 1)
    assert repeats.due("x") == 1
