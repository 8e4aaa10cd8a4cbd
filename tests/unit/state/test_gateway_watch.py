"""GatewayWatch: silence by the observer's clock alone, and the reaper that acts on it."""

import contextlib

import pytest

from shared.errors import StateUnavailableError
from shared.state.liveness import LONGEST_STEP_S, SILENCE_S, GatewayWatch
from shared.state.memory_records import MemoryGatewayLiveness, MemoryRequestRecords
from shared.state.reaper import Reaper
from shared.state.records import Admission, AdmittedRequest, Outcome, ReapVerdict, RequestState
from tests.support.fakes.manual_clock import ManualClock


class Sky:
    """Drives one watch second by second; others beat unless silent."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.watch = GatewayWatch("me", self.clock)
        self.beats = {"me": 0, "other": 0}

    def second(self, *silent: str, seconds_s: float = 1.0) -> dict[str, int]:
        self.clock.advance(seconds_s)
        for g_inc in self.beats:
            self.beats[g_inc] += g_inc not in silent
        return dict(self.watch.observe(self.beats).dead)


def test_a_gateway_that_stands_still_is_dead_after_ten_seconds_not_before() -> None:
    sky = Sky()
    sky.second()
    quiet = 0
    while not sky.second("other"):
        quiet += 1
    assert quiet + 1 == SILENCE_S
    assert sky.second("other") == {"other": 1}
    assert sky.second() == {}


def test_beats_may_be_slow() -> None:
    sky = Sky()
    for _ in range(10):
        for _ in range(int(SILENCE_S) - 1):
            assert sky.second("other") == {}
        assert sky.second() == {}


@pytest.mark.parametrize("outage_s", [10.0, 3600.0])
def test_an_outage_is_no_evidence(outage_s: float) -> None:
    sky = Sky()
    sky.second()
    assert sky.second("other", seconds_s=outage_s) == {}
    for _ in range(int(SILENCE_S - LONGEST_STEP_S) - 1):
        assert sky.second("other") == {}
    assert sky.second() == {}


def test_a_gateway_never_declares_itself_dead() -> None:
    sky = Sky()
    for _ in range(20):
        assert "me" not in sky.second("me")


def test_a_first_look_proves_nothing() -> None:
    clock = ManualClock()
    watch = GatewayWatch("me", clock)
    clock.advance(100)
    assert watch.observe({"me": 1, "old": 500}).dead == {}


def test_lost_beats_are_noticed() -> None:
    watch = GatewayWatch("me", ManualClock())
    assert not watch.observe({"me": 1}).lost
    assert not watch.observe({"me": 2}).lost
    assert not watch.observe({"me": 5}).lost
    assert watch.observe({"me": 1}).lost
    assert not watch.observe({"me": 2}).lost
    assert watch.observe({"me": 2}).lost


def request(rid: str, gateway_incarnation: str) -> AdmittedRequest:
    return AdmittedRequest(rid, gateway_incarnation, "acme", "pool", 10, 0)


@pytest.mark.anyio
async def test_the_reaper_abandons_what_the_dead_left_and_nothing_else() -> None:
    clock = ManualClock()
    liveness = MemoryGatewayLiveness()
    records = MemoryRequestRecords(liveness, clock)
    reapers = [Reaper(g_inc, liveness, records, clock) for g_inc in ("g.1", "g.2", "g.3")]
    for g_inc in ("g.1", "g.2", "g.3"):
        assert await records.admit(request(f"of {g_inc}", g_inc)) is Admission.ADMITTED
    for _ in range(3):
        clock.advance(1)
        assert [await reaper.beat() for reaper in reapers] == [False] * 3
        assert [await reaper.reap() for reaper in reapers] == [()] * 3
    reaped: list[str] = []
    for _ in range(int(SILENCE_S) + 2):
        clock.advance(1)
        for reaper in reapers[1:]:
            await reaper.beat()
            for rid in await reaper.reap():
                reaped.append(rid)
                reaper.settle(rid)
    assert reaped == ["of g.1"]
    assert set(liveness.beats) == {"g.2", "g.3"}
    assert await reapers[0].beat(), "its own beats are gone: all it has is admitted again"
    assert await records.admit(request("of g.1", "g.1")) is Admission.ADMITTED
    outcome = Outcome(RequestState.DONE, "stop", 3, 0)
    assert (await records.finish(request("of g.1", "g.1"), outcome)).written


class AwayAfterOne(MemoryRequestRecords):
    """Redis goes away after the first REAP, once."""

    num_reaps = 0

    async def reap(self, rid: str, gateway_incarnation: str, beat: int) -> ReapVerdict:
        self.num_reaps += 1
        if self.num_reaps == 2:
            raise StateUnavailableError
        return await super().reap(rid, gateway_incarnation, beat)


@pytest.mark.anyio
async def test_what_a_turn_cut_short_has_reaped_is_named_again() -> None:
    clock, liveness = ManualClock(), MemoryGatewayLiveness()
    records = AwayAfterOne(liveness, clock)
    reaper = Reaper("g.1", liveness, records, clock)
    await liveness.beat("g.2")
    for rid in ("a", "b"):
        await records.admit(request(rid, "g.2"))
    turns = []
    for _ in range(int(SILENCE_S) + 2):
        clock.advance(1)
        with contextlib.suppress(StateUnavailableError):
            await reaper.beat()
            turns.append(await reaper.reap())
    assert records.num_reaps == 3
    assert turns[-1] == ("a", "b")
    for rid in turns[-1]:
        reaper.settle(rid)
    assert await reaper.reap() == ()
