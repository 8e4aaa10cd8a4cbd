"""A decode worker that drains: its requests go on at another, with their KV.

Guards: a drain that waits for the longest answer, or has prompts computed again; a request that is
moved where nobody can go on with it.
"""

from dataclasses import replace

import pytest

from services.gateway.owner.links.worker_link import SPARE_BLOCKS
from services.gateway.owner.moves import LOOK_S, MAX_MOVES, NEAR_END
from shared.message_parts.span import Span
from shared.protocol import Assign, Attempt, Cancel, Handback, Load, Pong, Receive, Refuse, Spans
from shared.settings.groups import KVPressure
from shared.telemetry import attributes as names
from shared.transfer_address import TransferAddress
from tests.unit.gateway.owner.gateway_bench import IDLE, Bench, FakeWorker, settle, started

pytestmark = pytest.mark.anyio
DRAINING = replace(IDLE, state="draining")


def decode_worker(name: str, load: Load = IDLE) -> FakeWorker:
    worker = FakeWorker("decode", name)
    worker.hands_over, worker.load = True, load
    return worker


class Cell:
    """Requests that decode at `d`, in a cell where `e` could go on with them."""

    def __init__(self, bench: Bench, d: FakeWorker, e: FakeWorker) -> None:
        self.bench, self.d, self.e = bench, d, e

    async def decoding(self, num_requests: int = 1, max_tokens: int = 99) -> None:
        """Each has its prompt and two tokens at `d`."""
        await self.bench.add(self.d)
        for number in range(num_requests):
            self.bench.door.submit(self.bench.request(f"r{number}", 40 + number, max_tokens))
            self.d.start()
            self.d.tokens(0, 10, 11)
        await self.bench.add(self.e)
        await settle()

    def drain(self) -> None:
        self.bench.clock.advance(2 * LOOK_S)
        self.d.load = DRAINING
        self.d.say(Pong(0, DRAINING))

    def first_released(self) -> None:
        """`d` keeps nothing any more of `r0`."""
        self.drain()
        self.d.start(num_cached_tokens=32)
        self.d.tokens(2, 12)
        attempt = self.d.last(Assign).work.attempt
        self.d.say(Spans(attempt, self.d.incarnation, (Span(names.SPAN_HELD, 1, 2, 7),)))

    def first_moved(self) -> None:
        """`r0` goes on at `e`."""
        self.first_released()
        self.e.tokens(2, 12, 13)

    def assigned(self) -> list[Attempt]:
        """What `d` is to hand over."""
        return [each.work.attempt for each in self.d.all(Assign) if each.mode == "prefill"]

    def moved(self) -> list[Attempt]:
        return [each.work.attempt for each in self.e.all(Receive)]


def cell(bench: Bench) -> Cell:
    return Cell(bench, decode_worker("d0"), decode_worker("d1"))


async def test_a_request_goes_on_elsewhere_with_the_kv_that_is_there() -> None:
    async with started(Bench("agg")) as bench:
        one = cell(bench)
        await one.decoding()
        one.drain()
        assign = one.d.last(Assign)
        assert (assign.mode, assign.work.attempt) == ("prefill", Attempt("r0", 1))
        assert assign.work.token_ids == (*range(40), 10, 11)
        one.d.start(num_cached_tokens=32)
        receive = one.e.last(Receive)
        assert receive.work == assign.work
        assert (receive.source, receive.prefill_incarnation) == (
            TransferAddress("d0:7"),
            one.d.incarnation,
        )
        one.d.tokens(2, 12)
        one.e.tokens(2, 12, 13)
        live = bench.live("r0")
        assert live.machine.token_ids == [10, 11, 12, 13]
        assert live.machine.decodes_at(one.e.incarnation)
        assert not one.d.all(Cancel), "the epoch takes the place of the one before"
        first, second = live.receipt.attempts
        assert (first.end, second.mode, second.prefill, second.decode) == (
            "moved",
            "prefill",
            "d0",
            "d1",
        )
        assert bench.core.counters.attempts == {"first": 1, "moved": 1}
        assert not len(live.machine.strikes)


async def test_one_moves_alone_then_so_many_at_once_the_shortest_first() -> None:
    async with started(Bench("agg")) as bench:
        one = cell(bench)
        await one.decoding(MAX_MOVES + 3)
        one.drain()
        one.drain()
        assert one.assigned() == [Attempt("r0", 1)]
        one.first_moved()
        one.drain()
        one.drain()
        assert one.assigned() == [Attempt(f"r{number}", 1) for number in range(1 + MAX_MOVES)]
        for assign in one.d.all(Assign)[-MAX_MOVES:]:
            one.d.start_of(assign)
        one.e.run(one.e.all(Receive)[1], 2, 12, 13)
        one.drain()
        assert len(one.assigned()) == 1 + MAX_MOVES + 1


async def test_where_the_first_move_fails_another_one_begins() -> None:
    async with started(Bench("agg")) as bench:
        one = cell(bench)
        await one.decoding(2)
        one.drain()
        attempt = one.d.last(Assign).work.attempt
        one.d.say(Refuse(attempt, one.d.incarnation, "no_room"))
        one.drain()
        assert one.assigned() == [Attempt("r0", 1), Attempt("r1", 1)]


@pytest.mark.parametrize(
    "reason",
    ["it drains too", "others wait there", "no block to spare", "not pulled from"],
)
async def test_a_request_stays_where_nobody_can_go_on_with_it(reason: str) -> None:
    async with started(Bench("agg")) as bench:
        one = cell(bench)
        one.d.hands_over = reason != "not pulled from"
        one.e.load = {
            "it drains too": DRAINING,
            "others wait there": replace(IDLE, waiting=1),
            "no block to spare": replace(IDLE, free=3, held=97),
        }.get(reason, IDLE)
        await one.decoding()
        one.drain()
        assert one.assigned() == []
        one.d.tokens(2, 12)
        assert bench.live("r0").machine.token_ids == [10, 11, 12]


async def test_a_draining_worker_does_first_what_it_took_and_keeps_what_would_be_lost() -> None:
    async with started(Bench("agg")) as bench:
        one = cell(bench)
        await one.decoding()
        tight = replace(DRAINING, free=1 + SPARE_BLOCKS, held=83 - SPARE_BLOCKS, running=1)
        for busy in (replace(DRAINING, queued_tokens=900), replace(DRAINING, waiting=1), tight):
            one.d.say(Pong(0, busy))
            bench.clock.advance(LOOK_S)
        assert one.assigned() == []
        one.drain()
        assert one.assigned() == [Attempt("r0", 1)]


async def test_what_ends_soon_stays() -> None:
    async with started(Bench("agg")) as bench:
        one = cell(bench)
        await one.decoding(max_tokens=2 + NEAR_END)
        one.drain()
        assert one.assigned() == []


async def test_what_engines_have_died_under_stays_and_holds_no_other_move_up() -> None:
    async with started(Bench("agg")) as bench:
        one = cell(bench)
        await one.decoding(2)
        bench.live("r0").machine.strikes.note_crash("gone", 2, alone=False)
        one.drain()
        assert [attempt.rid for attempt in one.assigned()] == ["r1"]


async def test_blocks_are_promised_once() -> None:
    """Four blocks each, and the reader has seven."""
    async with started(Bench("agg")) as bench:
        one = cell(bench)
        one.e.load = replace(IDLE, free=7, held=93)
        await one.decoding(MAX_MOVES)
        one.first_moved()
        one.drain()
        one.drain()
        assert one.assigned() == [Attempt("r0", 1), Attempt("r1", 1)]


async def test_a_source_that_was_released_may_go_before_decode_has_spoken() -> None:
    async with started(Bench("agg")) as bench:
        one = cell(bench)
        await one.decoding()
        one.first_released()
        one.d.die()
        assert bench.live("r0").machine.epoch == 1
        one.e.tokens(2, 12, 13)
        assert bench.live("r0").machine.token_ids == [10, 11, 12, 13]


async def test_a_source_that_goes_before_is_done_without_a_strike() -> None:
    async with started(Bench("agg")) as bench:
        one = cell(bench)
        await one.decoding()
        one.drain()
        one.d.start(num_cached_tokens=32)
        one.d.die()
        live = bench.live("r0")
        assert (live.machine.epoch, len(live.machine.strikes)) == (2, 0)
        assert one.e.last(Assign).mode == "local"


async def test_nothing_moves_from_a_worker_that_gives_back() -> None:
    async with started(Bench("agg")) as bench:
        one = cell(bench)
        await one.decoding(2)
        one.d.load = DRAINING
        bench.clock.advance(LOOK_S)
        one.d.say(Handback(Attempt("r0", 0), one.d.incarnation, "draining"))
        assert one.assigned() == []


async def test_a_request_whose_prompt_is_still_computed_does_not_move() -> None:
    async with started(Bench("agg")) as bench:
        one = cell(bench)
        await bench.add(one.d)
        bench.door.submit(bench.request("r0"))
        one.d.start()
        await bench.add(one.e)
        one.drain()
        assert one.assigned() == []


async def test_where_the_reader_goes_meanwhile_the_request_is_placed_again() -> None:
    """Perhaps at the worker that drained, if that serves again by then."""
    async with started(Bench("agg")) as bench:
        one = cell(bench)
        await one.decoding()
        one.drain()
        one.e.say(Pong(0, DRAINING))
        one.d.load = IDLE
        one.d.say(Pong(1, IDLE))
        one.d.start(num_cached_tokens=32)
        assert [cancel.attempt for cancel in one.d.all(Cancel)] == [Attempt("r0", 1)]
        again = one.d.last(Assign)
        assert (again.mode, again.work.attempt) == ("local", Attempt("r0", 2))


async def test_a_worker_that_cannot_hand_over_after_all_costs_no_strike() -> None:
    async with started(Bench("agg")) as bench:
        one = cell(bench)
        await one.decoding()
        one.drain()
        attempt = one.d.last(Assign).work.attempt
        one.d.say(Refuse(attempt, one.d.incarnation, "draining"))
        again = one.e.last(Assign)
        assert (again.mode, again.work.attempt) == ("local", Attempt("r0", 2))
        assert again.work.token_ids == (*range(40), 10, 11)
        assert not len(bench.live("r0").machine.strikes)


async def test_what_has_not_moved_by_the_drain_limit_is_handed_back() -> None:
    async with started(Bench("agg")) as bench:
        one = cell(bench)
        await one.decoding()
        one.drain()
        one.d.start(num_cached_tokens=32)
        one.d.say(Handback(one.d.last(Assign).work.attempt, one.d.incarnation, "draining"))
        again = one.e.last(Assign)
        assert (again.mode, again.work.attempt) == ("local", Attempt("r0", 2))
        assert [cancel.attempt for cancel in one.e.all(Cancel)] == [Attempt("r0", 1)]


@pytest.mark.parametrize("policy", ["preempt", "queue", "reject"])
async def test_one_moves_only_to_the_blocks_that_it_would_wait_for_there(
    policy: KVPressure,
) -> None:
    """42 tokens by now, 138 at most."""
    async with started(Bench("agg", on_kv_pressure=policy)) as bench:
        one = Cell(bench, decode_worker("d0"), decode_worker("d1", replace(IDLE, free=6, held=94)))
        await one.decoding()
        one.drain()
        assert bool(one.assigned()) is (policy == "preempt")
