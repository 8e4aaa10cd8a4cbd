"""Links to the workers: found, watched, lost, found again, also while Redis is away."""

import math
from dataclasses import replace

import pytest

from services.gateway.owner.links.lost_workers import GONE_S
from services.gateway.owner.links.worker_links import (
    MAX_UNANSWERED_PINGS,
    REDIAL_INTERVAL_S,
    SUSPECT_S,
)
from services.gateway.owner.links.worker_view import GUESS, tokens_per_s
from shared.challenge import OtherSecretError, OtherVersionError, Versions
from shared.message_parts.step_costs import NO_COSTS, StepCosts
from shared.protocol import Assign, Load, Ping, Pong, Refuse
from shared.state.keys import WORKER_TTL_S
from tests.unit.gateway.owner.gateway_bench import POOL, Bench, FakeWorker, settle, started, until

pytestmark = pytest.mark.anyio

COSTS = StepCosts(5e-3, 2e-5, 3e-8, 2.5e-5, 2e-9)
KV = Load(10, 0, 1, 2, 100, 70, 20, 10, step_costs=COSTS, step_error=0.04334)


def states(bench: Bench) -> list[tuple[str, str]]:
    return [(entry["id"], entry["state"]) for entry in bench.door.status()["workers"]]


async def test_what_was_sent_since_a_worker_last_spoke_counts_as_sequences_there() -> None:
    d = FakeWorker("decode", "d0")
    async with started(Bench()) as bench:
        await bench.add(d)
        d.say(Pong(1, KV))
        worker = bench.links.get(d.incarnation)
        assert worker is not None and worker.view.num_sequences == 3
        worker.charge("first", 5)
        worker.charge("second", 5)
        assert worker.view.num_sequences == 5
        d.say(Pong(2, KV))
        assert worker.view.num_sequences == 5, "they are still on the way"
        bench.clock.advance(0.1)
        d.say(Pong(3, KV))
        assert worker.view.num_sequences == 3, "it counts them, or has refused them"


async def test_what_waits_there_takes_what_it_says_and_what_is_on_its_way_costs() -> None:
    p = FakeWorker("prefill", "p0")
    async with started(Bench()) as bench:
        await bench.add(p)
        p.say(Pong(1, replace(KV, queued_tokens=3000, queued_s=0.25)))
        worker = bench.links.get(p.incarnation)
        assert worker is not None and worker.view.queued_s == 0.25
        worker.charge("long", 1000)
        on_the_way_s = COSTS.chunk_token_s * 1000 + COSTS.chunk_pair_s * 1000 * 1001 / 2
        assert worker.view.queued_s == pytest.approx(0.25 + on_the_way_s)
        worker.settle("long")
        p.say(Pong(2, replace(KV, queued_tokens=1000)))
        told_s = COSTS.chunk_token_s * 1000
        assert worker.view.queued_s == pytest.approx(told_s), "of an earlier release"


@pytest.mark.parametrize(
    "costs",
    [
        *(NO_COSTS, COSTS._replace(chunk_token_s=0, chunk_pair_s=0)),
        *(COSTS._replace(step_s=wrong) for wrong in (-1.0, math.nan, math.inf)),
    ],
)
async def test_a_prompt_is_never_free_nor_costs_what_no_time_is(costs: StepCosts) -> None:
    """Neither on a worker that has not told its costs, nor where its fit says so."""
    p = FakeWorker("prefill", "p0")
    async with started(Bench()) as bench:
        await bench.add(p)
        wrong = replace(KV, step_costs=costs, queued_s=math.nan, place_s=math.nan)
        p.say(Pong(1, replace(wrong, queued_tokens=100)))
        worker = bench.links.get(p.incarnation)
        assert worker is not None
        assert worker.view.costs.chunk_token_s == GUESS.chunk_token_s
        assert 0 < tokens_per_s(worker.view) <= 1 / GUESS.chunk_token_s
        assert worker.view.place_s == 0
        assert worker.view.queued_s == pytest.approx(0.01)


async def test_costs_that_no_step_has_tested_have_no_error_yet() -> None:
    d = FakeWorker("decode", "d0")
    async with started(Bench()) as bench:
        await bench.add(d)
        d.say(Pong(1, replace(KV, step_error=0.0)))
        (entry,) = bench.door.status()["workers"]
        assert entry["step_error"] is None


async def test_status_shows_what_a_worker_says_of_itself() -> None:
    d = FakeWorker("decode", "d0")
    async with started(Bench()) as bench:
        await bench.add(d)
        gauges = {"worker_ranks": 2.0, "memory_bytes:kv": 4096.0, "padding_ratio": 0.1}
        d.say(Pong(1, KV, {"baton_preemptions_total": 3}, gauges=gauges))
        bench.clock.advance(0.5)
        status = bench.door.status()
        assert status["workers"] == [
            {
                "id": "d0",
                "role": "decode",
                "pid": 7,
                "host": "here",
                "incarnation": d.incarnation,
                "protocol": 6,
                "state": "ready",
                "kv": {"total": 100, "free": 70, "cached": 20, "held": 10},
                "idle_room_tokens": 10,
                "running": 1,
                "waiting": 2,
                "ranks": 2,
                "memory_bytes": {"kv": 4096},
                "rates": {"prompt_tokens_s": 0.0, "tokens_s": 0.0},
                "step_costs": COSTS._asdict(),
                "step_error": 0.0433,
                "heartbeat_age_s": 0.5,
            }
        ]
        keys = [
            "version",
            "url",
            "admin_url",
            "model",
            "max_model_len",
            "block_size",
            "requests",
            "workers",
            "hand_overs",
            "trouble",
            "redis",
        ]
        assert list(status) == keys
        assert status["redis"] == "ok"
        assert bench.links.counter_totals() == {"baton_preemptions_total": 3}


async def test_a_lost_worker_is_suspect_then_gone_and_its_totals_stay() -> None:
    d = FakeWorker("decode", "d0")
    async with started(Bench()) as bench:
        await bench.add(d)
        d.say(Pong(1, KV, {"steps": 5}))
        d.die()
        assert states(bench) == [("d0", "suspect")]
        bench.clock.advance(SUSPECT_S)
        assert states(bench) == []
        assert bench.links.counter_totals() == {"steps": 5}


async def test_a_broken_link_is_dialled_again_and_totals_are_not_doubled() -> None:
    d = FakeWorker("decode", "d0")
    async with started(Bench()) as bench:
        await bench.add(d)
        d.say(Pong(1, KV, {"steps": 5}))
        assert d.link is not None
        d.link.hang_up()
        await until(lambda: len(d.greetings) == 2)
        await settle()
        assert states(bench) == [("d0", "ready")]
        assert d.greetings[0].dial < d.greetings[1].dial
        d.say(Pong(1, KV, {"steps": 6}))
        assert bench.links.counter_totals() == {"steps": 6}


async def test_a_restarted_worker_replaces_its_former_self() -> None:
    old, new = FakeWorker("decode", "d0"), FakeWorker("decode", "d0", "2")
    async with started(Bench()) as bench:
        await bench.add(old)
        old.die()
        await bench.add(new)
        assert states(bench) == [("d0", "ready")]


async def test_links_outlive_the_registry() -> None:
    d = FakeWorker("decode", "d0")
    async with started(Bench()) as bench:
        await bench.add(d)
        bench.registry.away = True
        await until(lambda: not bench.links.registry_answers)
        assert (bench.door.ready(), bench.door.store_state()) == (True, "away")
        assert states(bench) == [("d0", "ready")]
        assert d.link is not None
        d.link.hang_up()
        await until(lambda: len(d.greetings) == 2)


async def test_trouble_names_the_workers_that_are_missing_and_those_not_linked() -> None:
    p, d, e = (
        FakeWorker("prefill", "p0"),
        FakeWorker("decode", "d0"),
        FakeWorker("decode", "d1"),
    )
    p.objection = d.objection = OtherSecretError(b"")
    e.reachable = False
    async with started(Bench()) as bench:
        assert bench.door.trouble() == "no decode worker is linked"
        bench.workers += [p, d, e]
        for port, worker in enumerate(bench.workers):
            await bench.registry.register(worker.entry(port))
        await until(lambda: "d0, p0" in bench.links.trouble() and "d1" in bench.links.trouble())
        assert bench.door.status()["trouble"] == (
            "no decode worker is linked; 2 registered workers are not linked (d0, p0): another "
            "BATON_CELL_SECRET, give all processes the same one; 1 registered worker is not linked "
            "(d1): nobody answers at fake:2"
        )
        e.reachable = True
        await until(lambda: e.link is not None)
        assert bench.door.trouble().startswith("2 registered workers are not linked (d0, p0)")
        for worker in (p, d):
            await bench.registry.remove(POOL, worker.incarnation)
        await until(lambda: not bench.door.trouble())


async def test_a_worker_that_died_is_told_until_it_is_back() -> None:
    """Its entry in the registry is gone before that."""
    d0, d1 = FakeWorker("decode", "d0"), FakeWorker("decode", "d1")
    again = FakeWorker("decode", "d1", nonce="2")
    async with started(Bench()) as bench:
        await bench.add(d0, d1)
        assert not bench.door.trouble()
        d1.die()
        await until(lambda: "nobody answers" in bench.door.trouble())
        bench.clock.advance(WORKER_TTL_S)
        await bench.registry.remove(POOL, d1.incarnation)
        told = "1 worker was lost and not replaced (d1)"
        await until(lambda: bench.door.trouble() == told)
        bench.clock.advance(GONE_S / 2)
        await settle()
        assert bench.door.trouble() == bench.door.live()["trouble"] == told
        assert bench.door.ready(), "the other one serves"
        await bench.add(again)
        assert not bench.door.trouble()


async def test_a_worker_that_left_the_registry_itself_is_not_wanted_back() -> None:
    d0, d1, d2 = (FakeWorker("decode", f"d{number}") for number in range(3))
    async with started(Bench()) as bench:
        await bench.add(d0, d1, d2)
        await bench.registry.remove(POOL, d1.incarnation)
        d1.die()
        d2.say(Pong(1, replace(KV, state="draining")))
        d2.die()
        bench.clock.advance(WORKER_TTL_S)
        await bench.registry.remove(POOL, d2.incarnation)
        for _ in range(8):
            bench.clock.advance(REDIAL_INTERVAL_S)
            await settle()
        assert bench.door.trouble() == ""


async def test_a_worker_of_a_version_too_far_away_is_named_and_dialled_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its process will not learn another one."""
    near, far = FakeWorker("decode", "d0"), FakeWorker("decode", "d1")
    far.objection = OtherVersionError(Versions(3, 3), Versions(6, 7))
    async with started(Bench()) as bench:
        await bench.add(near)
        bench.workers.append(far)
        await bench.registry.register(far.entry(1))
        told = (
            "1 registered worker is not linked (d1): peer speaks version 3, this is versions 6..7: "
            "upgrade one version at a time"
        )
        await until(lambda: bench.door.trouble() == told)
        for _ in range(8):
            bench.clock.advance(REDIAL_INTERVAL_S)
            await settle()
        assert bench.door.ready() and bench.door.status()["trouble"] == told
        assert (far.num_dials, caplog.text.count("d1 is not dialled again: peer speaks")) == (1, 1)


async def test_a_worker_that_answers_no_ping_is_given_up() -> None:
    d = FakeWorker("decode", "d0")
    async with started(Bench()) as bench:
        await bench.add(d)
        worker = bench.links.get(d.incarnation)
        assert worker is not None
        worker.num_unanswered_pings = MAX_UNANSWERED_PINGS
        d.reachable = False
        await until(lambda: bench.links.get(d.incarnation) is None)
        assert states(bench) == [("d0", "suspect")]


async def test_pings_flow_and_any_frame_answers_them() -> None:
    d = FakeWorker("decode", "d0")
    async with started(Bench()) as bench:
        await bench.add(d)
        await until(lambda: bool(d.all(Ping)))
        worker = bench.links.get(d.incarnation)
        assert worker is not None
        d.say(Pong(d.last(Ping).seq, KV))
        assert worker.num_unanswered_pings == 0


async def test_the_greeting_names_what_still_lives_there() -> None:
    p, d = FakeWorker("prefill", "p0"), FakeWorker("decode", "d0")
    async with started(Bench()) as bench:
        await bench.add(p, d)
        assert p.greetings[0].attempts == ()
        bench.door.submit(bench.request())
        assert p.last(Assign).work.attempt.rid == "r1"
        assert bench.core.frames.live_attempts(p.incarnation) == (("r1", 0),)
        assert bench.core.frames.live_attempts(d.incarnation) == ()


async def test_a_draining_worker_is_shown_and_gets_nothing_new() -> None:
    d = FakeWorker("decode", "d0")
    async with started(Bench()) as bench:
        await bench.add(d)
        d.say(Pong(1, Load(10, 0, 1, 2, 100, 70, 20, 10, state="draining")))
        assert states(bench) == [("d0", "draining")]
        assert not bench.door.serves()


async def test_a_worker_that_refused_because_it_drains_serves_again_when_it_says_so() -> None:
    p, d = FakeWorker("prefill", "p0"), FakeWorker("decode", "d0")
    async with started(Bench()) as bench:
        await bench.add(p, d)
        bench.door.submit(bench.request())
        p.say(Refuse(p.last(Assign).work.attempt, p.incarnation, "draining"))
        assert ("p0", "draining") in states(bench)
        p.say(Pong(1, Load(10_000, 0, 0, 0, 100, 100, 0, 0)))
        assert ("p0", "ready") in states(bench)
