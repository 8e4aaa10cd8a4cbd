"""What becomes of an attempt that failed: what is avoided, when the next starts, at what cost."""

import random
from dataclasses import replace

import pytest

from services.gateway.owner.placement.failures import FIRST_PAUSE_S, FORGET_S, MAX_PAUSE_S, Failures
from services.gateway.owner.retrying.retry_budget import (
    FLOOR_S,
    FLOOR_SHARE,
    SHARE,
    WINDOW_S,
    RetryBudget,
)
from services.gateway.owner.retrying.retry_delay import DELAYS_S, retry_delay_s
from shared.protocol import Assign, Attempt, Fail, Handback, Pong, Receive
from tests.unit.gateway.owner.gateway_bench import IDLE, Bench, FakeWorker, settle, started, until

PAIR = ("p0", "d0")


def test_what_is_past_is_forgotten_although_nobody_asks() -> None:
    """A cell in which nothing fails never asks for the sum."""
    budget = RetryBudget(0.0)
    for second in range(10 * int(WINDOW_S)):
        budget.note_admitted(100, float(second))
    assert len(budget._admitted._items) == WINDOW_S
    assert budget._admitted.total(10 * WINDOW_S - 1) == 100 * WINDOW_S


def test_a_failure_closes_for_a_while_and_many_of_one_cause_close_once() -> None:
    failures = Failures()
    for _ in range(20):
        failures.note_failure(PAIR, 10.0)
    assert failures.closed_to(10.0 + FIRST_PAUSE_S - 0.01) == {PAIR}
    assert failures.closed_to(10.0 + FIRST_PAUSE_S) == frozenset()


def test_after_the_pause_one_request_is_the_probe() -> None:
    failures = Failures()
    failures.note_failure(PAIR, 0.0)
    failures.note_choice(PAIR, 0.5)
    assert not failures.closed_to(1.0), "a request that went there within the pause had no choice"
    failures.note_choice(PAIR, 1.0)
    assert failures.closed_to(1.1) == {PAIR}
    failures.note_success(PAIR)
    assert not failures.closed_to(1.2)
    assert not Failures().closed_to(0.0)


def test_each_probe_that_fails_doubles_the_pause() -> None:
    failures, now_s, pauses = Failures(), 0.0, []
    failures.note_failure(PAIR, now_s)
    for _ in range(8):
        start_s = now_s
        while failures.closed_to(now_s):
            now_s += 0.25
        pauses.append(now_s - start_s)
        failures.note_choice(PAIR, now_s)
        failures.note_failure(PAIR, now_s)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, MAX_PAUSE_S, MAX_PAUSE_S, MAX_PAUSE_S]


def test_a_probe_of_which_nothing_is_heard_is_followed_by_another() -> None:
    failures = Failures()
    failures.note_failure(PAIR, 0.0)
    failures.note_choice(PAIR, 1.0)
    assert not failures.closed_to(1.0 + FIRST_PAUSE_S)


def test_what_nobody_tries_any_more_is_forgotten() -> None:
    failures = Failures()
    for at in range(1000):
        failures.note_failure((f"p{at}",), float(at))
    assert len(failures._breakers) < 200


def test_the_first_retry_starts_at_once_and_later_ones_later() -> None:
    rng = random.Random(1)  # noqa: S311
    assert [retry_delay_s(num, rng) for num in (0, 1)] == [0.0, 0.0]
    for num, step_s in ((2, DELAYS_S[1]), (3, DELAYS_S[2]), (9, DELAYS_S[2])):
        delays = [retry_delay_s(num, rng) for _ in range(200)]
        assert 0.5 * step_s <= min(delays) < 0.6 * step_s
        assert 1.4 * step_s < max(delays) <= 1.5 * step_s


def test_retries_may_make_a_tenth_of_the_work_admitted_in_the_last_minute() -> None:
    budget = RetryBudget(0.0)
    budget.note_admitted(100_000, 0.0)
    budget.note_pool(1.0, 0.0)
    assert budget.take(int(100_000 * SHARE), 1.0)
    assert budget.take(int(FLOOR_S), 1.0), "the floor is still there"
    assert not budget.take(1, 1.0)
    budget.note_admitted(1_000, 30.0)
    assert budget.take(int(1_000 * SHARE), WINDOW_S + 2.0), "the minute is over"


def test_the_floor_is_what_the_pool_computes_in_seconds_and_fills_again() -> None:
    """Streams by the dozen restart at once; the same again only after the pool has worked."""
    budget = RetryBudget(0.0)
    budget.note_pool(10_000.0, 0.0)
    num_started = sum(budget.take(1_000, 0.0) for _ in range(100))
    assert num_started == FLOOR_S * 10
    assert not budget.take(1_000, 0.4)
    assert budget.take(1_000, 0.5)
    num_later = sum(budget.take(1_000, second) for second in range(1, 101))
    assert num_later <= 100 * 10 * FLOOR_SHARE + 1


def test_one_retry_larger_than_the_floor_may_once_it_is_full() -> None:
    budget = RetryBudget(0.0)
    budget.note_pool(100.0, 0.0)
    assert budget.take(5_000, 0.0)
    assert not budget.take(5_000, 60.0)
    assert budget.take(5_000, 60.0 + 5_000 / (100.0 * FLOOR_SHARE))


def test_a_pool_that_shrinks_and_grows_keeps_its_share_of_the_floor() -> None:
    budget = RetryBudget(0.0)
    budget.note_pool(1_000.0, 0.0)
    assert budget.take(2_000, 0.0)
    budget.note_pool(0.0, 0.0)
    budget.note_pool(500.0, 0.0)
    assert not budget.take(1_001, 0.0)
    assert budget.take(1_000, 0.0)


def cell() -> tuple[FakeWorker, FakeWorker, FakeWorker]:
    return FakeWorker("prefill", "p0"), FakeWorker("decode", "d0"), FakeWorker("decode", "d1")


def source_lost(worker: FakeWorker) -> None:
    receive = worker.last(Receive)
    worker.say(Fail(receive.work.attempt, worker.incarnation, "source_lost", ""))


@pytest.mark.anyio
async def test_a_decode_worker_that_cannot_reach_prefill_is_left_alone_by_everybody() -> None:
    """It fails fast, so it has the fewest sequences and would be chosen again and again."""
    p, d0, d1 = cell()
    async with started(Bench()) as bench:
        await bench.add(p, d0, d1)
        bench.door.submit(bench.request("r0"))
        p.start()
        source_lost(d0)
        p.start()
        assert d1.last(Receive).work.attempt.epoch == 1
        for at in range(1, 9):
            bench.door.submit(bench.request(f"r{at}"))
            p.start()
        assert len(d0.all(Receive)) == 1
        assert [assign.mode for assign in p.all(Assign)] == ["prefill"] * 10
        bench.clock.advance(FIRST_PAUSE_S)
        for at in range(9, 12):
            bench.door.submit(bench.request(f"r{at}"))
            p.start()
        assert len(d0.all(Receive)) == 2, "one probe"
        probe = d0.last(Receive)
        assert probe.work.attempt.rid in ("r9", "r10", "r11")
        d0.tokens(0, 10)
        bench.door.submit(bench.request("r12"))
        p.start()
        assert d0.last(Receive).work.attempt.rid == "r12", "the probe got on"


@pytest.mark.anyio
async def test_a_retry_avoids_all_that_failed_it_and_not_only_the_last() -> None:
    p, d0, d1 = cell()
    d2 = FakeWorker("decode", "d2")
    d2.load = replace(IDLE, running=9)
    async with started(Bench(max_attempts=9)) as bench:
        await bench.add(p, d0, d1, d2)
        bench.door.submit(bench.request())
        for worker in (d0, d1):
            p.start()
            source_lost(worker)
            await until(lambda: len(p.all(Assign)) > 1)
        await until(lambda: len(p.all(Assign)) == 3)
        bench.clock.advance(2 * MAX_PAUSE_S - 1)
        p.start()
        assert d2.last(Receive).work.attempt.epoch == 2


@pytest.mark.anyio
async def test_with_no_pair_left_decode_computes_the_prompt_itself() -> None:
    """Each is tried twice before that: a single damaged pull must not move the work."""
    p, d0, d1 = cell()
    async with started(Bench()) as bench:
        await bench.add(p, d0, d1)
        bench.door.submit(bench.request())
        for epoch in range(4):
            wanted = Attempt("r1", epoch)
            await until(lambda wanted=wanted: p.last(Assign).work.attempt == wanted)  # type: ignore[misc]
            p.start()
            (worker,) = (
                d for d in (d0, d1) if d.all(Receive) and d.last(Receive).work.attempt == wanted
            )
            source_lost(worker)
        await until(lambda: bool(d0.all(Assign) + d1.all(Assign)))
        (assign,) = d0.all(Assign) + d1.all(Assign)
        assert (assign.mode, assign.reason, assign.work.attempt.epoch) == ("local", "no_pair", 4)


@pytest.mark.anyio
async def test_a_retry_that_pauses_can_be_cancelled() -> None:
    p, d0, d1 = cell()
    async with started(Bench()) as bench:
        await bench.add(p, d0, d1)
        generation = bench.door.submit(bench.request())
        for epoch in range(2):
            p.say(Fail(Attempt("r1", epoch), p.incarnation, "broken", ""))
        assert len(p.all(Assign)) == 2
        assert bench.core.facts().num_waiting == 1
        generation.cancel()
        await settle()
        assert bench.door.status()["requests"] == {"live": 0}
        bench.door.submit(bench.request("r2"))
        await until(lambda: len(p.all(Assign)) == 3)
        assert p.last(Assign).work.attempt.rid == "r2"


@pytest.mark.anyio
async def test_who_pauses_holds_no_newcomer_up() -> None:
    p, d0, d1 = cell()
    async with started(Bench(max_backlog=0)) as bench:
        await bench.add(p, d0, d1)
        bench.door.submit(bench.request())
        for epoch in range(2):
            p.say(Fail(Attempt("r1", epoch), p.incarnation, "broken", ""))
        bench.door.submit(bench.request("r2"))
        assert p.last(Assign).work.attempt.rid == "r2"


@pytest.mark.anyio
async def test_beyond_the_budget_retries_wait_and_do_not_fail() -> None:
    """A worker dies whose streams are more than the pool may compute again at once."""
    p, d0, d1 = cell()
    num = 60
    async with started(Bench(max_live_requests=num)) as bench:
        await bench.add(p, d0, d1)
        p.load = replace(IDLE, room_tokens=10**6)
        bench.request_clock.tick()
        for at in range(num):
            bench.door.submit(bench.request(f"r{at}", num_prompt=2000))
            p.start()
        num_hit = len(d0.all(Receive))
        d0.die()
        num_restarted = len(p.all(Assign)) - num
        assert 0 < num_restarted < num_hit
        facts = bench.core.facts()
        assert facts.retries_held == num_hit - num_restarted
        waiting = [bench.door.receipt(f"r{at}") for at in range(num)]
        held = [item for item in waiting if item and item["waited"] == "retry_budget"]
        assert len(held) == facts.retries_held
        for _ in range(5):
            bench.clock.advance(0.9)
            bench.request_clock.tick()
        assert len(p.all(Assign)) - num == num_hit
        assert bench.door.status()["requests"] == {"live": num}


@pytest.mark.anyio
async def test_waiting_for_the_budget_never_ends_a_request() -> None:
    p, d0, d1 = cell()
    num = 20
    async with started(Bench(max_live_requests=num, first_token_timeout_s=10.0)) as bench:
        await bench.add(p, d0, d1)
        p.load = replace(IDLE, room_tokens=10**6)
        bench.request_clock.tick()
        for at in range(num):
            bench.door.submit(bench.request(f"r{at}", num_prompt=20_000))
            p.start()
        d0.die()
        p.say(Pong(0, replace(p.load, room_tokens=1)))
        for _ in range(10):
            bench.clock.advance(3.0)
            bench.request_clock.tick()
        held = [
            rid for rid in (f"r{at}" for at in range(num)) if rid in bench.requests._retries._held
        ]
        assert held
        assert all(bench.requests.get(rid) for rid in held)


@pytest.mark.anyio
async def test_a_worker_with_nothing_to_do_takes_a_retry_beyond_the_budget() -> None:
    p, d0, d1 = cell()
    async with started(Bench(max_live_requests=20)) as bench:
        await bench.add(p, d0, d1)
        p.load = replace(IDLE, room_tokens=10**6)
        bench.request_clock.tick()
        for at in range(20):
            bench.door.submit(bench.request(f"r{at}", num_prompt=20_000))
            p.start()
        d0.die()
        num_started = len(p.all(Assign))
        for _ in range(3):
            p.start()
            bench.clock.advance(0.02)
            p.say(Pong(0, p.load))
            bench.request_clock.tick()
        assert len(p.all(Assign)) == num_started + 3


def num_strikes(bench: Bench) -> list[int]:
    return [len(live.machine.strikes) for live in bench.requests.all()]


@pytest.mark.anyio
async def test_a_worker_that_hands_back_before_it_goes_gets_nothing_more_and_costs_nothing() -> (
    None
):
    """What it handed back would come again before its link closes, and die there."""
    p, d0, _ = cell()
    async with started(Bench()) as bench:
        await bench.add(p, d0)
        for rid in ("r1", "r2"):
            bench.door.submit(bench.request(rid))
        p.say(Handback(Attempt("r1", 0), p.incarnation, "killed"))
        num_assigned = len(p.all(Assign))
        bench.door.submit(bench.request("r3"))
        p.die()
        assert len(p.all(Assign)) == num_assigned
        assert num_strikes(bench) == [0, 0, 0]


@pytest.mark.anyio
async def test_a_worker_that_was_frozen_and_comes_back_has_cost_no_strike() -> None:
    p, d0, d1 = cell()
    async with started(Bench()) as bench:
        await bench.add(p, d0, d1)
        bench.door.submit(bench.request())
        p.start()
        d0.die()
        assert num_strikes(bench) == [1]
        d0.reachable = True
        await until(lambda: num_strikes(bench) == [0])


def test_a_pair_that_failed_once_is_closed_and_not_broken() -> None:
    failures = Failures()
    failures.note_failure(PAIR, 0.0)
    assert failures.closed_to(0.5) == {PAIR}
    assert not failures.broken(0.5)
    failures.note_failure(PAIR, 0.1)
    assert failures.broken(0.5) == {PAIR}
    failures.note_failure(("d0",), 0.1)
    failures.note_failure(("d0",), 0.2)
    assert failures.broken(0.5) == {PAIR}, "a worker has no other way to compute a prompt"


@pytest.mark.anyio
async def test_workers_that_never_hand_over_are_named() -> None:
    p, d0, _ = cell()
    async with started(Bench()) as bench:
        await bench.add(p, d0)
        for number in range(2):
            assert not bench.door.trouble()
            bench.door.submit(bench.request(f"r{number}"))
            p.start()
            source_lost(d0)
            bench.clock.advance(FIRST_PAUSE_S)
        assert bench.door.status()["trouble"] == (
            "no KV goes from p0 to d0: 2 attempts in a row failed, and d0's log says why"
        )
        d0.die()
        await until(lambda: "no KV" not in bench.door.trouble())


def test_trouble_of_long_ago_is_none() -> None:
    failures = Failures()
    failures.note_failure(PAIR, 0.0)
    failures.note_failure(PAIR, 1.5)
    assert failures.trouble({"p0", "d0"}, 2.0)
    assert not failures.trouble({"p0"}, 2.0)
    assert not failures.trouble({"p0", "d0"}, 2.0 + 2 * FIRST_PAUSE_S + FORGET_S)
