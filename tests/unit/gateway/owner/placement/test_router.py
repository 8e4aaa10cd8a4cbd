"""Routing decisions: where a prompt goes, when it waits, and that the choice is cheap."""

import random
import time
from typing import Any

import pytest

from services.gateway.owner.links.worker_view import WorkerView
from services.gateway.owner.machine.effects import Mode
from services.gateway.owner.placement.admission import HAND_OVER_LIMIT_S
from services.gateway.owner.placement.avoidance import NOBODY, Avoidance
from services.gateway.owner.placement.router import (
    Placement,
    Prompt,
    Route,
    choose_decode,
    choose_placement,
    choose_worker,
    reachable,
)
from services.gateway.owner.records.route_text import route_text
from shared.message_parts.step_costs import StepCosts
from shared.protocol import Incoming
from shared.queue.room import LongPlace, Room
from shared.settings.groups import Topology
from tests.support.measured import Measured

TOKEN_S = 1e-4


def view(incarnation: str, queued: int = 0, **facts: Any) -> WorkerView:
    worker = WorkerView(
        incarnation=incarnation,
        role="prefill" if incarnation.startswith("p") else "decode",
        ready=True,
        room=old_room(1024),
        idle=False,
        queued_tokens=queued,
        num_sequences=0,
        spare_blocks=1000,
        queued_s=queued * TOKEN_S,
        costs=StepCosts(chunk_token_s=TOKEN_S),
    )
    for name, value in facts.items():
        setattr(worker, name, value)
    return worker


def old_room(tokens: int) -> Room:
    """Of a worker of an earlier release."""
    return Room(1024, tokens, tokens, LongPlace.UNTOLD)


def route(
    workers: list[WorkerView],
    holders: dict[str, int] | None = None,
    prefer: str | None = None,
    avoidance: Avoidance = NOBODY,
    mode: Mode = "prefill",
    seed: int = 3,
) -> Route | None:
    prompt = Prompt(512, 16, holders or {}, prefer, avoidance)
    return choose_worker(Placement(mode, "", workers), prompt, random.Random(seed))  # noqa: S311


def chosen(result: Route | None) -> str:
    assert result is not None
    return result.incarnation


def test_the_shorter_queue_wins_and_ties_go_by_name() -> None:
    assert chosen(route([view("p0", 900), view("p1", 100)])) == "p1"
    assert chosen(route([view("p1"), view("p0")])) == "p0"


def test_a_cached_prefix_is_worth_its_tokens_and_no_more() -> None:
    workers = [view("p0", 300), view("p1", 0)]
    result = route(workers, {"p0": 30})
    assert chosen(result) == "p0"
    assert result is not None
    assert (result.why, result.num_uncached_tokens) == ("prefix", 512 - 480)
    assert route_text(result).startswith(
        "prefill on the worker with the prefix; estimated_ttft_ms="
    )
    assert chosen(route([view("p0", 500), view("p1", 0)], {"p0": 30})) == "p1"


def test_the_receipt_does_not_say_that_it_only_prefilled() -> None:
    result = route([view("p0")])
    assert result is not None and route_text(result).startswith(
        "prefill on the only worker; estimated_ttft_ms="
    )


def test_a_slow_worker_is_charged_for_it() -> None:
    slow = view("p0")
    slow.costs = StepCosts(chunk_token_s=1e-3)
    assert chosen(route([slow, view("p1", 500)])) == "p1"


def test_a_long_prompt_costs_more_than_its_tokens_say() -> None:
    """Half of it cached, its second half attends to the first all the same."""
    worker = view("p0", costs=StepCosts(step_s=0.01, chunk_token_s=1e-4, chunk_pair_s=1e-6))
    estimates_s = []
    for holders in ({}, {"p0": 16}):
        result = route([worker], holders)
        assert result is not None
        estimates_s.append(result.estimate_s)
    assert estimates_s[0] == pytest.approx(0.01 + 512e-4 + 512 * 513 / 2 * 1e-6)
    assert estimates_s[1] == pytest.approx(0.01 + 256e-4 + (512 * 513 - 256 * 257) / 2 * 1e-6)


def test_no_room_anywhere_means_backlog_but_an_idle_worker_takes_any_length() -> None:
    full = [view("p0", room=old_room(100)), view("p1", room=old_room(511))]
    assert route(full) is None
    assert chosen(route([*full, view("p2", room=old_room(100), idle=True)])) == "p2"


def test_a_retry_prefers_its_worker_and_avoids_the_one_that_failed() -> None:
    workers = [view("p0", 500), view("p1", 0), view("p2", 10)]
    assert chosen(route(workers, prefer="p0")) == "p0"
    suspect = Avoidance(suspects=frozenset({"p1"}))
    closed = Avoidance(closed=frozenset({("p1",)}))
    for avoidance in (suspect, closed):
        assert chosen(route(workers, avoidance=avoidance)) == "p2"
        assert chosen(route([view("p1")], avoidance=avoidance)) == "p1"
    full = [view("p1"), view("p2", room=old_room(0))]
    assert chosen(route(full, avoidance=suspect)) == "p1"
    assert route(full, avoidance=closed) is None, "it has room because it fails"


def test_many_workers_the_best_holder_is_always_a_candidate() -> None:
    workers = [view(f"p{at:02}", 400) for at in range(64)]
    result = route(workers, {f"p{at:02}": at % 32 for at in range(40, 60)})
    assert chosen(result) == "p59"
    assert result is not None
    assert 9 <= result.num_candidates <= 11


def test_many_workers_the_least_loaded_is_always_a_candidate() -> None:
    workers = [view(f"p{at:02}", 400 if at != 17 else 0) for at in range(64)]
    assert chosen(route(workers)) == "p17"


@pytest.mark.parametrize(
    ("mode", "expected"), [("local", "d1"), ("prefill", "d0")], ids=["decodes", "hands over"]
)
def test_a_worker_that_decodes_too_costs_what_its_sequences_wait_for_the_prompt(
    mode: Mode, expected: str
) -> None:
    """Each of them waits for 512 tokens, so one less is worth a queue of up to 512."""
    workers = [view("d0", num_sequences=1), view("d1", 500)]
    assert chosen(route(workers, mode=mode)) == expected
    workers[1].queued_s = 520 * TOKEN_S
    assert chosen(route(workers, mode=mode)) == "d0"


def test_a_cached_prefix_is_worth_what_sequences_do_not_wait_for() -> None:
    """480 of 512 tokens are cached: each of the holder's sequences waits for 32, not for 512."""
    workers = [view("d0", num_sequences=14), view("d1")]
    result = route(workers, {"d0": 30}, mode="local")
    assert result is not None and (result.incarnation, result.why) == ("d0", "prefix")
    workers[0].num_sequences = 16
    assert chosen(route(workers, {"d0": 30}, mode="local")) == "d1"


def test_the_estimate_is_the_time_to_token_1_wherever_the_sequence_decodes() -> None:
    workers = [view("d0", 300, num_sequences=7)]
    result = route(workers, mode="local")
    assert result is not None and result.estimate_s == pytest.approx(812e-4)


def test_a_retry_prefers_its_worker_whatever_decodes_there() -> None:
    workers = [view("d0"), view("d1", num_sequences=30)]
    assert chosen(route(workers, prefer="d1", mode="local")) == "d1"


@pytest.mark.parametrize("seed", range(5))
def test_many_workers_the_one_with_the_fewest_sequences_is_always_a_candidate(seed: int) -> None:
    workers = [view(f"d{at:02}", num_sequences=9 if at != 17 else 1) for at in range(64)]
    assert chosen(route(workers, mode="local", seed=seed)) == "d17"


def test_gateways_that_see_the_same_do_not_all_choose_the_same_empty_worker() -> None:
    """The first eight are the least loaded by their queues, and all but those run nothing."""
    workers = [view(f"d{at:02}", num_sequences=5 * (at < 8)) for at in range(64)]
    found = {chosen(route(workers, mode="local", seed=seed)) for seed in range(40)}
    assert len(found) > 10 and all(inc >= "d08" for inc in found)


@pytest.mark.parametrize("num_workers", [2, 5, 8, 9, 32])
@pytest.mark.parametrize("seed", range(3))
def test_sequences_are_spread_evenly_among_equal_workers(num_workers: int, seed: int) -> None:
    """One after the other, each seen before the next."""
    dice = random.Random(seed)  # noqa: S311
    workers = [view(f"d{at:02}", room=old_room(10**6)) for at in range(num_workers)]
    named = {worker.incarnation: worker for worker in workers}
    placement = Placement("local", "agg", workers)
    for at in range(20 * num_workers):
        route_ = choose_worker(placement, Prompt(dice.randrange(1, 4000), 16, {}), dice)
        named[chosen(route_)].num_sequences += 1
        numbers = [worker.num_sequences for worker in workers]
        assert max(numbers) - min(numbers) <= 1, f"after {at + 1} requests: {numbers}"


@pytest.mark.parametrize(
    ("topology", "seen", "incs", "expected"),
    [
        ("auto", True, ["p0", "d0"], ("prefill", "")),
        ("auto", False, ["d0"], ("local", "agg")),
        ("auto", True, ["d0"], ("local", "no_prefill_worker")),
        ("pd", True, ["d0"], ("local", "no_prefill_worker")),
        ("pd", False, ["d0"], None),
        ("agg", True, ["p0", "d0"], ("local", "agg")),
        ("auto", True, ["p0"], ("prefill", "")),
        ("auto", False, [], None),
    ],
)
def test_who_prefills(
    topology: Topology, seen: bool, incs: list[str], expected: tuple[str, str] | None
) -> None:
    placement = choose_placement([view(inc) for inc in incs], topology, seen)
    assert (placement and (placement.mode, placement.reason)) == expected


RATE = 1000.0
SOON, LATE = round(0.5 * HAND_OVER_LIMIT_S * RATE), round(2 * HAND_OVER_LIMIT_S * RATE)
"""tokens that are handed over in time, and that are not"""


def pulling(incarnation: str, **num_tokens: int) -> WorkerView:
    """A decode worker, and what it has still to pull from which prefill worker."""
    incoming = {p_inc: Incoming(p_inc, num, RATE) for p_inc, num in num_tokens.items()}
    return view(incarnation, incoming=incoming)


@pytest.mark.parametrize(
    ("workers", "expected"),
    [
        ([pulling("d0", p0=0, p1=0)], ["p0", "p1"]),
        ([pulling("d0", p0=SOON)], ["p0", "p1"]),
        ([pulling("d0", p0=LATE)], ["p1"]),
        ([pulling("d0", p0=LATE, p1=LATE)], []),
        ([pulling("d0", p0=LATE, p1=LATE), pulling("d1", p0=0, p1=0)], ["p0", "p1"]),
        ([pulling("d0", p0=LATE), pulling("d1", p0=LATE)], ["p1"]),
        ([view("p2", unpulled_tokens=LATE), pulling("d0", p2=0)], ["p0", "p1"]),
        ([view("p2", unpulled_tokens=LATE), view("d0")], ["p0", "p1", "p2"]),
        ([pulling("d0", gone=LATE)], ["p0", "p1"]),
    ],
)
def test_a_prompt_goes_past_links_that_will_not_take_its_kv_in_time(
    workers: list[WorkerView], expected: list[str]
) -> None:
    placement = choose_placement([view("p0"), view("p1"), *workers], "auto", True)
    assert placement is not None
    incs = [worker.incarnation for worker in placement.workers]
    if expected:
        assert (placement.mode, placement.reason, incs) == ("prefill", "", expected)
    else:
        assert (placement.mode, placement.reason, incs) == ("local", "slow_link", ["d0"])


@pytest.mark.parametrize(
    ("unreserved", "to_pull", "expected"),
    [
        (LATE, 0, "prefill"),
        (LATE, SOON, "prefill"),
        (LATE, LATE, "local"),
        (SOON, 0, "local"),
        (2 * LATE, LATE, "local"),
    ],
)
def test_kv_that_waits_for_blocks_of_decode_does_not_make_its_link_slow(
    unreserved: int, to_pull: int, expected: str
) -> None:
    """Prefill counts it as unpulled; more room at decode would not let any of it wait."""
    decode = pulling("d0", p0=to_pull)
    decode.unreserved_tokens = {"p0": unreserved, "gone": LATE}
    placement = choose_placement([view("p0", unpulled_tokens=LATE + SOON), decode], "auto", True)
    assert placement is not None and placement.mode == expected


@pytest.mark.parametrize(("queued_s", "expected"), [(0.0, "local"), (2.0, "prefill")])
def test_kv_that_is_yet_to_be_computed_does_not_wait_for_its_link(
    queued_s: float, expected: str
) -> None:
    """The link is busy for longer than its limit, but not for longer than prefill is."""
    queued = view("p0", unpulled_tokens=LATE, queued_s=queued_s)
    placement = choose_placement([queued, pulling("d0", p0=0)], "auto", True)
    assert placement is not None and placement.mode == expected


def test_without_a_decode_worker_nothing_goes_past_the_link() -> None:
    placement = choose_placement([view("p0", unpulled_tokens=LATE)], "auto", True)
    assert placement is not None
    assert placement.mode == "prefill"


def test_decode_is_not_the_worker_whose_link_is_behind() -> None:
    workers = [pulling("d0", p0=SOON, p1=LATE), view("d1", num_sequences=5)]
    assert choose_decode(workers, Prompt(512, 16, {})) == "d1"


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        ([], ("prefill", "", ["p0", "p1"])),
        ([("p0", "d0")], ("prefill", "", ["p0", "p1"])),
        ([("p0", "d0"), ("p0", "d1")], ("prefill", "", ["p1"])),
        ([("p0", "d0"), ("d1",)], ("prefill", "", ["p1"])),
        ([(p, d) for p in ("p0", "p1") for d in ("d0", "d1")], ("local", "no_pair", ["d0", "d1"])),
    ],
)
def test_prompts_go_where_a_decode_worker_can_pull_from(
    broken: list[tuple[str, ...]], expected: tuple[str, str, list[str]]
) -> None:
    """Pairs that failed once are tried again before decode computes prompts."""
    workers = [view(inc) for inc in ("p0", "p1", "d0", "d1")]
    keys = frozenset(broken)
    placement = Placement("prefill", "", workers[:2])
    found = reachable(placement, workers, Avoidance(closed=keys, broken=keys))
    assert (found.mode, found.reason, [worker.incarnation for worker in found.workers]) == expected
    closed_once = reachable(placement, workers, Avoidance(closed=keys))
    assert closed_once.mode == "prefill"


def test_workers_that_are_not_ready_get_nothing() -> None:
    assert choose_placement([view("p0", ready=False)], "auto", True) is None
    assert choose_decode([view("d0", ready=False)], Prompt(512, 16, {})) is None


def test_decode_goes_to_the_emptiest_that_can_hold_the_prompt() -> None:
    workers = [
        view("d0", num_sequences=2),
        view("d1", num_sequences=1),
        view("d2", num_sequences=0, spare_blocks=31),
    ]
    assert choose_decode(workers, Prompt(512, 16, {})) == "d1"
    assert choose_decode(workers, Prompt(496, 16, {})) == "d2"
    pair_failed = Avoidance(closed=frozenset({("p0", "d1")}))
    assert choose_decode(workers, Prompt(512, 16, {}, avoidance=pair_failed), "p0") == "d0"
    assert choose_decode(workers, Prompt(512, 16, {}, avoidance=pair_failed), "p1") == "d1"
    assert choose_decode(workers[1:2], Prompt(512, 16, {}, avoidance=pair_failed), "p0") == "d1"
    even = [view("d0"), view("d1")]
    assert choose_decode(even, Prompt(512, 16, {"d1": 16})) == "d1"


@pytest.mark.parametrize("roles", ["pd", "dd"], ids=["pd", "agg"])
def test_a_decision_among_64_workers_is_cheap(measured: Measured, roles: str) -> None:
    """The budget is 50 us at p99 on a quiet core; the bound here allows a shared one."""
    rng = random.Random(1)  # noqa: S311
    workers = [view(f"{roles[at % 2]}{at:02}", rng.randrange(4000)) for at in range(64)]
    holders = {f"{roles[at % 2]}{at:02}": rng.randrange(1, 30) for at in range(0, 64, 5)}
    prompt = Prompt(900, 16, holders)
    times = []
    for _ in range(2000):
        start = time.perf_counter()
        placement = choose_placement(workers, "auto", "p" in roles)
        assert placement is not None
        choose_worker(placement, prompt, rng)
        times.append(time.perf_counter() - start)
    measured.at_most("a decision, p50", sorted(times)[len(times) // 2] * 1e6, 100, "us")
