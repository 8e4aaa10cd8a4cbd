"""What an operator sees of a core: rings that hold the last minutes, and one body of all.

The failure guarded: trouble that users feel and the page does not show, and rings that grow.
"""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from services.gateway.owner.links.served_pool import ServedPool
from services.gateway.owner.view.changes import Changes
from services.gateway.owner.view.events import MAX_EVENTS, Events
from services.gateway.owner.view.gap_line import NUM_SECONDS, PACE_SECONDS, GapLine
from services.gateway.owner.view.live_view import LiveView
from services.gateway.owner.view.looks import Look, Looks, gap_quantiles
from services.gateway.owner.view.recent import MAX_VALUES, Recent, RecentStages
from services.gateway.owner.view.scaling_feed import ScalingFeed
from shared.errors import OverloadedError, StateUnavailableError
from shared.message_parts.span import Span
from shared.protocol import Assign, Spans
from shared.state.notes.scaling import RoleScaling, Scaling, ScalingNotes
from shared.telemetry import attributes as names
from shared.telemetry.attainment import Kept
from tests.support.cases.live_body import live_body
from tests.support.fakes.manual_clock import ManualClock
from tests.unit.gateway.owner.gateway_bench import IDLE, Bench, FakeWorker, settle, started

pytestmark = pytest.mark.anyio


# Rings


def test_a_gap_line_has_the_longest_gap_of_each_second() -> None:
    line = GapLine()
    for now_s, gap_s in ((7.1, 0.02), (7.5, 0.5), (7.9, 0.01), (9.0, 0.03)):
        line.note(now_s, gap_s)
    assert line.last_ms(9.9)[-4:] == [None, 500.0, None, 30.0]
    assert len(line.last_ms(9.9)) == NUM_SECONDS


def test_a_gap_line_forgets_what_is_older() -> None:
    line = GapLine()
    line.note(7.0, 0.5)
    assert line.last_ms(7.0 + NUM_SECONDS - 1)[0] == 500.0
    assert line.last_ms(7.0 + NUM_SECONDS) == [None] * NUM_SECONDS
    line.note(7.0 + NUM_SECONDS, 0.1)
    assert line.last_ms(7.0 + NUM_SECONDS)[-1] == 100.0, "not the longer one of an earlier round"


def test_the_mean_gap_is_that_of_the_frames_of_late() -> None:
    line = GapLine()
    for now_s, gap_s in ((7.1, 0.02), (7.5, 0.03), (8.0, 0.04)):
        line.note(now_s, gap_s)
    assert line.mean_s(8.9) == 0.0, "two seconds do not tell a stall from a slow worker"
    line.note(9.1, 1.5)
    assert line.mean_s(9.5) == pytest.approx(0.04)
    line.note_missing(9.6, 5.0)
    assert line.last_ms(9.9)[-3:] == [30.0, 40.0, 5000.0]
    assert line.mean_s(9.9) == pytest.approx(0.04)
    line.note(10.0, 0.05)
    assert line.mean_s(10.5) == pytest.approx(0.04), "the slower half is left out"
    assert line.mean_s(12.0 + PACE_SECONDS) == 0.0


def test_events_are_the_last_ones_and_repeats_are_counted() -> None:
    clock = ManualClock(100.0)
    events = Events(clock)
    events.note("retry", "stalled", 2)
    clock.advance(59.0)
    events.note("retry", "stalled")
    assert [(event["text"], event["count"]) for event in events.told()] == [("stalled", 3)]
    clock.advance(61.0)
    events.note("retry", "stalled")
    for number in range(MAX_EVENTS + 5):
        events.note("worker", f"d{number} linked")
    told = events.told()
    assert len(told) == MAX_EVENTS
    assert (told[0]["text"], told[-1]["text"]) == (f"d{MAX_EVENTS + 4} linked", "d5 linked")


def test_recent_values_are_those_of_the_last_minute_and_no_more_than_fit() -> None:
    recent = Recent()
    assert recent.told(0.0) == {"p50": None, "p99": None, "count": 0}
    for number in range(100):
        recent.note(float(number), float(number))
    assert recent.told(99.0) == {"p50": 69.0, "p99": 99.0, "count": 61}
    for _ in range(MAX_VALUES + 9):
        recent.note(99.0, 1.0)
    assert recent.told(99.0) == {"p50": 1.0, "p99": 1.0, "count": MAX_VALUES}


def test_stages_that_a_path_lacks_are_not_counted() -> None:
    stages = RecentStages(("queue", "decode"))
    stages.note(1.0, {"queue": 2.0, "other": 9.0})
    assert stages.told(1.0)["queue"]["p50"] == 2.0
    assert stages.told(1.0)["decode"]["count"] == 0


def test_a_minute_is_what_totals_grew_by_since_a_minute_ago() -> None:
    minute = Looks(60.0, 0.0)
    first = Look(0.0, {"failed": 3}, [1, 0], {"gap": Kept(1, 0)})
    assert minute.growth(first) == first
    for second in range(200):
        kept = {"gap": Kept(2 * second, second)}
        minute.note(Look(float(second), {"failed": second}, [second, 0], kept))
    now = Look(199.5, {"failed": 200, "done": 2}, [205, 1], {"gap": Kept(400, 199)})
    grown = minute.growth(now)
    assert (grown.counts, grown.gaps) == ({"failed": 61, "done": 2}, [66, 1])
    assert grown.kept == {"gap": Kept(122, 60)}


def test_an_hour_is_told_by_few_looks() -> None:
    hour = Looks(3600.0, 60.0)
    for second in range(3 * 3600):
        hour.note(Look(float(second), {"failed": second}, [], {}))
    assert hour.growth(Look(10_799.5, {"failed": 10_800}, [], {})).counts == {"failed": 3660}


@pytest.mark.parametrize(
    ("counts", "p50", "p99"),
    [([0, 0, 0], None, None), ([99, 1, 0], 1.0, 1.0), ([1, 1, 0], 1.0, 5.0), ([0, 0, 1], 5.0, 5.0)],
)
def test_gap_quantiles_are_bounds(counts: list[int], p50: float | None, p99: float | None) -> None:
    told = gap_quantiles(counts, (0.001, 0.005))
    assert (told["p50"], told["p99"], told["count"]) == (p50, p99, sum(counts))


def test_changes_are_told_once() -> None:
    events = Events(ManualClock(100.0))
    changes = Changes(events)
    changes.look({"i": ("d0", False)}, "away", {"first": 3})  # not asked yet
    changes.look({"i": ("d0", False)}, "ok", {"first": 3})
    assert events.told() == []
    for _ in range(2):
        changes.look({"i": ("d0", True)}, "away", {"first": 9, "stalled": 2})
    changes.look({"i": ("d0", False)}, "ok", {"first": 9, "stalled": 3})
    assert [(event["text"], event["count"]) for event in reversed(events.told())] == [
        ("d0 drains", 1),
        ("Redis: away", 1),
        ("attempts repeated after stalled", 2),
        ("d0 serves again", 1),
        ("Redis is back", 1),
        ("attempts repeated after stalled", 1),
    ]


# The body


def worker_in(body: dict[str, Any], name: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = [each for each in body["workers"] if each["id"] == name]
    return found[0]


async def test_a_request_is_counted_in_each_of_its_stages() -> None:
    async with started(Bench("pd")) as bench:
        prefill, decode = FakeWorker("prefill", "p0"), FakeWorker("decode", "d0")
        await bench.add(prefill, decode)

        def stages() -> list[str]:
            return [stage for stage, num in bench.door.live()["requests"]["stages"].items() if num]

        bench.door.submit(bench.request("r1", max_tokens=9))
        assert stages() == ["queue"]
        prefill.start()
        assert stages() == ["prefill"]
        prefill.tokens(0, 7)
        assert stages() == ["handover"]
        decode.tokens(1, 7)
        assert stages() == ["decode"]
        assert bench.door.live()["requests"]["live"] == 1


async def test_waiting_requests_and_the_age_of_the_oldest() -> None:
    async with started(Bench("agg")) as bench:
        await bench.add(FakeWorker("decode", "d0"))
        bench.links.workers()[0].note_full()
        bench.door.submit(bench.request("r1"))
        bench.clock.advance(3.0)
        bench.door.submit(bench.request("r2"))
        requests = bench.door.live()["requests"]
        assert (requests["waiting"], requests["oldest_wait_s"]) == (2, 3.0)


async def test_gaps_show_on_the_line_of_the_worker_that_left_them() -> None:
    async with started(Bench("agg")) as bench:
        await bench.add(FakeWorker("decode", "d0"), FakeWorker("decode", "d1"))
        bench.door.submit(bench.request("r1", max_tokens=9))
        other, worker = sorted(bench.workers, key=lambda worker: len(worker.all(Assign)))
        worker.start()
        worker.tokens(0, 7)
        bench.clock.advance(0.25)
        worker.tokens(1, 7)
        body = bench.door.live()
        assert worker_in(body, worker.name)["gaps_ms"][-1] == 250.0
        assert worker_in(body, other.name)["gaps_ms"] == [None] * NUM_SECONDS
        bench.clock.advance(4.0)
        await bench.door.view.turn()
        assert worker_in(bench.door.live(), worker.name)["gaps_ms"][-1] == 4000.0, "no frame yet"


async def test_the_last_minute_of_times() -> None:
    async with started(Bench("agg")) as bench:
        worker = FakeWorker("decode", "d0")
        await bench.add(worker)
        await bench.door.view.turn()
        bench.door.submit(bench.request("r1", max_tokens=3))
        await settle()  # it is admitted: its client may have tokens as they come
        attempt = bench.live("r1").work.attempt
        worker.start()
        begin_ns = bench.clock.wall_ns()
        for index in range(3):
            bench.clock.advance(0.1)
            worker.tokens(index, 7, reason="length" if index == 2 else None)
        await settle()
        assert bench.door.live()["last_minute"]["stages_ms"]["prefill"]["count"] == 0
        span = Span(names.SPAN_PREFILL, begin_ns, begin_ns, 1)
        for _ in range(2):
            worker.say(Spans(attempt, worker.incarnation, (span,)))
        minute = bench.door.live()["last_minute"]
        assert minute["ttft_ms"] == {"p50": 100.0, "p99": 100.0, "count": 1}
        assert minute["gap_ms"]["count"] == 2
        assert 100.0 <= minute["gap_ms"]["p50"] <= 108.0
        assert minute["stages_ms"]["prefill"] == {"p50": 100.0, "p99": 100.0, "count": 1}
        assert minute["stages_ms"]["decode"]["p50"] == 200.0
        assert (minute["done"], minute["failed"], minute["retried"]) == (1, 0, 0)


async def test_refused_and_repeated_requests_and_lost_workers_are_told() -> None:
    async with started(Bench("agg")) as bench:
        with pytest.raises(OverloadedError):
            bench.door.submit(bench.request("r0"))
        worker = FakeWorker("decode", "d0")
        await bench.add(worker)
        bench.door.submit(bench.request("r1"))
        worker.start()
        worker.die()
        await bench.add(FakeWorker("decode", "d1"))
        await settle()
        await bench.door.view.turn()
        body = bench.door.live()
        assert body["since_start"]["refused"] == 1
        assert body["since_start"]["retried"] == 1
        texts = [event["text"] for event in body["events"]]
        assert "d0 lost with 1 live requests" in texts
        assert "attempts repeated after link_lost" in texts
        assert {"d0 linked", "d1 linked"} <= set(texts)


async def test_a_cell_that_serves_nobody_is_in_trouble() -> None:
    async with started(Bench("agg")) as bench:
        await settle()
        assert bench.door.live()["trouble"] == "no decode worker is linked"


async def test_the_body_that_the_page_is_tested_with_has_the_same_members() -> None:
    async with started(Bench("pd")) as bench:
        prefill, decode = FakeWorker("prefill", "p0"), FakeWorker("decode", "d0")
        await bench.add(prefill, decode)
        bench.door.submit(bench.request("r1"))
        span = Span(names.SPAN_TRANSFER, 1, 2, 1, {names.TRANSFER_BYTES: 9})
        decode.say(Spans(bench.live("r1").work.attempt, decode.incarnation, (span,)))
        roles = tuple(RoleScaling(role, 1, 2, 0, "") for role in ("prefill", "decode"))
        assert bench.door.live()["autoscaler"] is None
        bench.door.view.scaling = Scaling("advise", False, "", "", roles)
        assert members(bench.door.live()) == members(live_body(1, 1))


async def test_it_is_shown_while_redis_is_asked_and_not_when_redis_is_away() -> None:
    told, view = Scaling("advise", False, "", "", ()), SimpleNamespace(scaling=None)
    answers: list[Scaling | Exception | None] = [told, None, told, StateUnavailableError("away")]
    shown = []

    async def of(pool: str) -> Scaling | None:
        assert pool == "pool"
        shown.append(view.scaling)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    notes = cast("ScalingNotes", SimpleNamespace(of=of))
    feed = ScalingFeed(notes, ServedPool("m", "pool"), cast("LiveView", view))
    for _ in range(3):
        await feed.look()
    with pytest.raises(StateUnavailableError):
        await feed.look()
    assert shown == [None, told, None, told]
    assert view.scaling is None


def members(body: Any) -> Any:
    """The names in an object, also of the objects in it and of the first in each list."""
    if isinstance(body, dict):
        return {name: members(value) for name, value in body.items() if name != "step_costs"}
    return [members(body[0])] if isinstance(body, list) and body else None


async def test_a_worker_says_what_it_has_to_compute() -> None:
    async with started(Bench("agg")) as bench:
        await bench.add(FakeWorker("decode", "d0"))
        bench.door.submit(bench.request("r1", num_prompt=40))
        (worker,) = bench.door.live()["workers"]
        assert worker["queued_tokens"] == 40
        assert worker["queued_s"] > 0
        assert worker["kv"]["total"] == IDLE.total
