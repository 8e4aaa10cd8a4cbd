"""The table of held attempts, what a worker refuses by it, and how long one waits for a place."""

from dataclasses import replace

import pytest

from shared.engine.scheduling.load import EngineLoad
from shared.message_parts.step_costs import StepCosts
from shared.protocol import Assign, Attempt, Load, Sampling
from shared.queue.room import LongPlace
from shared.queue.throughput import LEAST_ENDS
from shared.worker.attempts.places import FRESH_S, Places
from shared.worker.attempts.table import AttemptTable, HeldAttempt
from shared.worker.state import WorkerState
from tests.unit.worker.fake_parts import (
    INC,
    LAYOUT,
    LOAD,
    ROOM_TOKENS,
    FakePeer,
    Journal,
    make_work,
)

PEER = FakePeer(Journal())
EACH_S = 0.5
"""from one end to the next"""


def held(rid: str, epoch: int = 0, num_tokens: int = 0, peer: FakePeer = PEER) -> HeldAttempt:
    return HeldAttempt(Attempt(rid, epoch), peer, "", num_tokens, accepted_ns=0)


def test_an_epoch_is_taken_once_and_only_upwards() -> None:
    table = AttemptTable()
    table.hold(held("a", 1))
    assert table.is_stale(Attempt("a", 0)) and table.is_stale(Attempt("a", 1))
    assert not table.is_stale(Attempt("a", 2)) and not table.is_stale(Attempt("b", 0))
    with pytest.raises(AssertionError):
        table.hold(held("a", 1))


def test_a_higher_epoch_names_the_lower_one_it_replaces() -> None:
    table = AttemptTable()
    first = held("a", 1)
    table.hold(first)
    assert table.superseded_by(Attempt("a", 3)) is first
    assert table.superseded_by(Attempt("a", 1)) is None
    assert table.superseded_by(Attempt("a", 0)) is None
    assert table.superseded_by(Attempt("b", 3)) is None


def test_dropping_a_lower_epoch_leaves_the_higher_one_known() -> None:
    table = AttemptTable()
    table.hold(held("a", 0))
    table.hold(held("a", 1))
    assert table.drop(Attempt("a", 0)) is not None
    assert table.is_stale(Attempt("a", 1)) and len(table) == 1
    assert table.drop(Attempt("a", 1)) is not None and table.drop(Attempt("a", 1)) is None
    assert len(table) == 0 and not table.is_stale(Attempt("a", 0))


def test_a_gateways_attempts_are_found_by_its_link() -> None:
    table, other = AttemptTable(), FakePeer(Journal(), "other")
    for item in (held("a"), held("b", peer=other), held("c")):
        table.hold(item)
    assert [item.attempt.rid for item in table.of_peer(PEER)] == ["a", "c"]
    for item in table:
        table.drop(item.attempt)
    assert len(table) == 0


def test_what_is_soonest_computed_again_is_the_prompt_and_the_answer_so_far() -> None:
    table = AttemptTable()
    prompt, decoding, new = held("a", num_tokens=50), held("b"), held("c", num_tokens=20)
    decoding.num_awaited_tokens, decoding.num_decoded_tokens = 16, 20
    for item in (prompt, decoding, new):
        table.hold(item)
    assert table.shortest_first() == [new, decoding, prompt]


def test_what_is_queued_takes_what_is_left_of_each_prompt_behind_what_is_computed() -> None:
    """The last 20 of 100 attend to 81 to 100 positions each."""
    table = AttemptTable()
    part, whole, decoding = held("a", num_tokens=20), held("b", num_tokens=10), held("c")
    part.num_work_tokens, whole.num_work_tokens, decoding.num_work_tokens = 100, 10, 5000
    for item in (part, whole, decoding):
        table.hold(item)
    by_tokens = table.queued_s(StepCosts(step_s=9.0, row_s=9.0, chunk_token_s=1.0))
    by_pairs = table.queued_s(StepCosts(chunk_pair_s=1.0))
    assert (by_tokens, by_pairs) == (30, sum(range(81, 101)) + sum(range(1, 11)))


def test_unstarted_tokens_are_those_before_the_first_chunk() -> None:
    table = AttemptTable()
    waiting, running = held("a", num_tokens=7), held("b", num_tokens=9)
    running.started_ns = 1
    table.hold(waiting)
    table.hold(running)
    assert (list(table.unstarted()), table.num_uncomputed_tokens) == ([(7, True)], 16)


def test_an_idle_worker_takes_a_prompt_of_any_length() -> None:
    assert WorkerState(INC, ROOM_TOKENS, LAYOUT).refusal(INC, 100 * ROOM_TOKENS) is None


def test_room_is_what_waits_not_what_runs() -> None:
    state = WorkerState(INC, ROOM_TOKENS, LAYOUT)
    running = held("a", num_tokens=500)
    running.started_ns = 1
    state.attempts.hold(running)
    assert state.refusal(INC, 500) is None
    for name in "bc":
        state.attempts.hold(held(name, num_tokens=8))
    assert state.refusal(INC, ROOM_TOKENS - 16) is None
    assert state.refusal(INC, ROOM_TOKENS - 15) == "no_room"


def test_what_later_ones_fill_is_room_of_earlier_ones() -> None:
    state = WorkerState(INC, ROOM_TOKENS, LAYOUT)
    for name in ("bulk", "more"):
        bulk = held(name, num_tokens=ROOM_TOKENS)
        bulk.early = False
        state.attempts.hold(bulk)
    load = state.load()
    assert (load.room_tokens, load.early_room_tokens) == (0, ROOM_TOKENS)
    assert load.long_place == LongPlace.EARLY
    assert state.refusal(INC, 1, early=False) == "no_room"
    assert state.refusal(INC, ROOM_TOKENS, early=False) == "no_room"
    assert state.refusal(INC, ROOM_TOKENS) is None
    state.attempts.hold(held("quick", num_tokens=ROOM_TOKENS // 2))
    state.attempts.hold(held("as quick", num_tokens=ROOM_TOKENS // 2))
    assert state.load().early_room_tokens == 0


def test_a_long_prompt_leaves_half_of_the_room_to_shorter_ones() -> None:
    state = WorkerState(INC, ROOM_TOKENS, LAYOUT)
    state.attempts.hold(held("long", num_tokens=100 * ROOM_TOKENS))
    assert state.load().room_tokens == ROOM_TOKENS // 2
    assert state.refusal(INC, ROOM_TOKENS // 2) is None
    assert state.refusal(INC, ROOM_TOKENS // 2 + 1) == "no_room", "another one waits elsewhere"
    assert state.load().long_place == LongPlace.NONE


def test_short_ones_take_no_place_of_a_long_one() -> None:
    state = WorkerState(INC, ROOM_TOKENS, LAYOUT)
    for name in "ab":
        state.attempts.hold(held(name, num_tokens=ROOM_TOKENS // 2))
    assert (state.load().room_tokens, state.load().long_place) == (0, LongPlace.ANY)
    assert state.refusal(INC, 1) == "no_room"
    assert state.refusal(INC, ROOM_TOKENS // 2 + 1) is None
    long = held("long", num_tokens=100 * ROOM_TOKENS)
    state.attempts.hold(long)
    assert state.load().room_tokens == 0, "never less"
    assert state.refusal(INC, 100 * ROOM_TOKENS) == "no_room"
    long.started_ns = 1
    assert state.refusal(INC, 100 * ROOM_TOKENS) is None, "the next one waits here"


def test_what_another_worker_computes_needs_no_room() -> None:
    state = WorkerState(INC, ROOM_TOKENS, LAYOUT)
    for name in "ab":
        state.attempts.hold(held(name, num_tokens=ROOM_TOKENS))
    assert state.refusal(INC, 1) == "no_room"
    assert state.refusal(INC, 0) is None, "nor a place"


def test_another_incarnation_and_draining_are_refused_before_room() -> None:
    state = WorkerState(INC, ROOM_TOKENS, LAYOUT)
    state.attempts.hold(held("a", num_tokens=20))
    assert state.refusal("worker.0", 1) == "incarnation"
    state.leaving = True
    assert state.refusal("worker.0", 1) == "incarnation"
    assert state.refusal(INC, 1) == "draining"


def test_the_load_has_the_queue_of_this_process_and_the_blocks_of_the_engine() -> None:
    state = WorkerState(INC, ROOM_TOKENS, LAYOUT)
    state.note_engine(EngineLoad(3, 2, 8, 1, 2, 5), {"engine_steps": 4})
    state.attempts.hold(held("a", num_tokens=15))
    load = Load(10, 15, 3, 2, 8, 1, 2, 5, early_room_tokens=10, queued_s=0.0, long_place=0)
    assert state.load() == load
    state.attempts.hold(held("b", num_tokens=15))
    state.leaving = True
    assert state.load() == Load(
        0, 30, 3, 2, 8, 1, 2, 5, "draining", early_room_tokens=0, queued_s=0.0, long_place=0
    )


def test_the_load_has_what_the_engines_steps_take() -> None:
    state = WorkerState(INC, ROOM_TOKENS, LAYOUT)
    costs = StepCosts(5e-3, 2e-5, 3e-8, 2.5e-5, 2e-9)
    state.note_engine(EngineLoad(0, 0, 8, 8, 0, 0, costs, 0.04), {})
    assert state.load().step_costs == costs
    assert state.load().step_error == 0.04


def test_engine_totals_and_own_counts_share_one_table() -> None:
    state = WorkerState(INC, ROOM_TOKENS, LAYOUT)
    state.count("handed_back")
    state.note_engine(LOAD, {"engine_steps": 4})
    state.note_engine(LOAD, {"engine_steps": 9})
    state.count("handed_back", 2)
    assert state.counters == {"handed_back": 3, "engine_steps": 9}


def hold(
    table: AttemptTable,
    rid: str,
    *,
    placed: bool = False,
    early: bool = True,
    num_left: int = 0,
) -> None:
    item = held(rid, num_tokens=10)
    item.early, item.started_ns, item.mode = early, int(placed), "local"
    item.num_least_tokens = num_left
    table.hold(item)


def place_of_next(places: Places, table: AttemptTable, num_ends: int) -> float:
    """Now. One of two places is a long one's; those that wait are given the other in turn."""
    hold(table, "long", placed=True)
    for number in range(num_ends + 1):
        hold(table, f"r{number}")
    now_s = 100.0
    for number in range(num_ends):
        places.wait_s(table, now_s)
        now_s += EACH_S
        table.drop(Attempt(f"r{number}", 0))
        table[Attempt(f"r{number + 1}", 0)].started_ns = 1
    return now_s


def test_as_many_have_to_end_as_lack_a_place() -> None:
    table, places = AttemptTable(), Places(2)
    now_s = place_of_next(places, table, 20)
    waits_s = [places.wait_s(table, now_s)]
    for number in range(2):
        hold(table, f"waits-{number}")
        waits_s.append(places.wait_s(table, now_s))
    each_s = 20 * EACH_S / 21
    assert waits_s == [each_s, 2 * each_s, 3 * each_s]
    hold(table, "later", early=False)
    assert places.wait_s(table, now_s) == 3 * each_s, "it lets others go ahead"


def test_what_gives_its_place_up_is_not_waited_for() -> None:
    """Later ones that were computed here do; those whose KV came from elsewhere keep it."""
    table, places = AttemptTable(), Places(2)
    now_s = place_of_next(places, table, 20)
    last = table[Attempt("r20", 0)]
    last.early = False
    assert places.wait_s(table, now_s) == 0
    last.mode = "receive"
    assert places.wait_s(table, now_s) > 0


def test_how_often_one_ended_while_a_place_was_free_says_nothing() -> None:
    table, places = AttemptTable(), Places(2)
    now_s = place_of_next(places, table, 20)
    table.drop(Attempt("long", 0))
    assert places.wait_s(table, now_s) == 0
    hold(table, "other", placed=True)
    assert places.wait_s(table, now_s) == 0, "since then nothing has ended"


@pytest.mark.parametrize(
    ("num_placed", "num_waiting", "num_steps"),
    [(3, 0, 0), (4, 0, 10), (4, 1, 20), (4, 2, 31), (4, 3, 40), (4, 12, 100)],
)
def test_before_enough_have_ended_the_tokens_that_are_left_count(
    num_placed: int, num_waiting: int, num_steps: int
) -> None:
    """Of four places. Those that have one lack 10, 20, 31 and 40 tokens, those that wait 30."""
    table, places, step_s = AttemptTable(), Places(4), 0.1
    for rid, left in zip("abcd", (10, 20, 31, 40), strict=True):
        if table.num_dropped + len(table) < num_placed:
            hold(table, rid, placed=True, num_left=left)
    for number in range(num_waiting):
        hold(table, f"waits-{number}", num_left=30)
    hold(table, "later", early=False, num_left=1000)
    if num_placed == 4:
        assert places.wait_s(table, 100.0, step_s) == pytest.approx(num_steps * step_s)
    else:
        table.drop(Attempt("later", 0))
        assert places.wait_s(table, 100.0, step_s) == 0


def test_what_was_reckoned_of_the_tokens_is_good_for_a_while() -> None:
    table, places = AttemptTable(), Places(1)
    hold(table, "a", placed=True, num_left=100)
    assert places.wait_s(table, 100.0, 0.1) == pytest.approx(10.0)
    table[Attempt("a", 0)].num_decoded_tokens = 50
    assert places.wait_s(table, 100.0 + FRESH_S / 2, 0.1) == pytest.approx(10.0)
    assert places.wait_s(table, 100.0 + 2 * FRESH_S, 0.1) == pytest.approx(5.0)


def test_a_sequence_whose_kv_is_there_waits_for_a_place_until_it_is_decoded() -> None:
    table, places = AttemptTable(), Places(1)
    for rid in ("first", "second"):
        hold(table, rid, num_left=100)
        item = table[Attempt(rid, 0)]
        item.mode, item.reserved_ns, item.adopted_ns = "receive", 1, 2
    table[Attempt("first", 0)].first_decode_ns = 3
    assert places.wait_s(table, 100.0, 0.1) == pytest.approx(20.0)


def test_work_says_how_many_tokens_it_asks_for() -> None:
    work = make_work(num_tokens=30)
    for sampling, num_tokens, num_earlier in (
        (Sampling(max_tokens=50), 0, 0),
        (Sampling(max_tokens=50, min_tokens=20), 20, 0),
        (Sampling(max_tokens=50, min_tokens=20), 15, 5),
        (Sampling(max_tokens=50, min_tokens=20), 0, 30),
        (Sampling(max_tokens=50, ignore_eos=True), 50, 0),
        (Sampling(max_tokens=50, ignore_eos=True, stop_token_ids=(7,)), 0, 0),
    ):
        ids = (1,) * (work.num_prompt_tokens + num_earlier)
        message = Assign(replace(work, sampling=sampling, token_ids=ids), INC, "local")
        item = HeldAttempt.of(message, PEER, 0)
        assert item.num_left_tokens == num_tokens
        item.num_decoded_tokens = 8
        assert item.num_left_tokens == max(0, num_tokens - 8)


def test_of_few_ends_nothing_is_foretold_nor_of_a_worker_that_decodes_nothing() -> None:
    for places, num_ends in ((Places(2), LEAST_ENDS - 1), (Places(0), 20)):
        table = AttemptTable()
        now_s = place_of_next(places, table, num_ends)
        assert places.wait_s(table, now_s) == 0
