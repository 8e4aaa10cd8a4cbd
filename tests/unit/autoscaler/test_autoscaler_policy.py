"""What the policy does in the situations that hurt users of other autoscalers.

Guarded against, one test each: a line that no one looks at, the wrong role that grows, a pod that
never gets a place, cold costs, trouble that shrinks a pool, a stream that ends with its worker.
"""

from dataclasses import replace

import pytest

from services.autoscaler.planning.line import Line, Patience, workers_to_clear
from services.autoscaler.planning.policy import HOLD_S, decide
from services.autoscaler.planning.pool import NO_PLACE_S
from services.autoscaler.view import (
    LOOK_S,
    Decision,
    Memory,
    PodView,
    Promise,
    RoleDecision,
    RoleMemory,
    RoleView,
    View,
    WorkerView,
)
from shared.message_parts.step_costs import NO_COSTS, StepCosts
from shared.queue.backlog import Waiting
from tests.support.cell_views import (
    COSTS,
    NOBODY,
    NOW_S,
    cell,
    pods,
    poisson,
    pool,
    worker,
    workers,
)

CALM = poisson(0.5)
"""a tenth of a prefill worker"""
IDLE = Memory({"prefill": RoleMemory(NOW_S - HOLD_S - 1, need=1)})
"""it is long enough ago that more prefill workers were needed"""


def prefill_of(view: View, memory: Memory = Memory()) -> RoleDecision:  # noqa: B008
    return decide(view, memory)[0].roles["prefill"]


def replicas(decision: Decision) -> tuple[int, int]:
    return decision.roles["prefill"].replicas, decision.roles["decode"].replicas


def test_load_that_ended_before_the_window_is_not_what_is_needed_now() -> None:
    """A burst of minutes ago keeps workers by the hold, not by the replay."""
    burst = poisson(12.0, 300.0, until_s=NOW_S - LOOK_S - 1)
    after = prefill_of(cell(pool(workers("p", 3)), arrivals=[*burst, *poisson(0.5, LOOK_S)]))
    assert "with 1 prefill worker" in after.reason
    assert "fewer would do, and one may go in 1150 s" in after.reason
    assert prefill_of(cell(arrivals=poisson(12.0, LOOK_S))).replicas > 1


def test_a_line_that_stands_orders_workers_though_the_past_is_calm() -> None:
    waiting = Waiting(400, 2_000_000)
    assert prefill_of(cell(arrivals=CALM)).replicas == 1
    ordered = prefill_of(cell(arrivals=CALM, waiting=waiting))
    assert ordered.replicas > 1
    assert "wait now" in ordered.reason


def test_a_line_that_is_gone_before_a_worker_starts_orders_none() -> None:
    waiting = Waiting(100, 200_000)
    assert prefill_of(cell(arrivals=CALM, waiting=waiting, start_s=60.0)).replicas == 1
    assert prefill_of(cell(arrivals=CALM, waiting=waiting, start_s=5.0)).replicas > 1


def test_workers_that_come_are_not_ordered_twice() -> None:
    waiting = Waiting(400, 2_000_000)
    one = pool(workers("p", 1), most=1000)
    first = prefill_of(cell(one, arrivals=CALM, waiting=waiting)).replicas
    assert 10 < first < 25
    for age_s in (0.0, 30.0, 59.0):
        coming = [PodView("p-0", True, 500.0)]
        coming += [PodView(f"p-{i}", False, age_s) for i in range(1, first)]
        prefill = pool(workers("p", 1), coming, replicas=first, most=1000)
        assert prefill_of(cell(prefill, arrivals=CALM, waiting=waiting)).replicas == first


@pytest.mark.parametrize(
    ("work_s", "comes", "num_ready", "coming_s", "expected"),
    [
        (2.0, 0.0, 2, [], 0),  # a wait of 1 s is promised
        (61.0, 0.0, 1, [], 0),  # done when another would come
        (100.0, 0.0, 1, [], 40),
        (100.0, 0.5, 1, [], 70.5),
        (100.0, 0.0, 1, [20.0], 0),  # the one that comes works 40 s by then
        (100.0, 0.0, 1, [50.0], 30),
        (5.0, 0.0, 0, [], 5),
    ],
)
def test_a_line_asks_for_what_clears_it_after_a_start(
    work_s: float, comes: float, num_ready: int, coming_s: list[float], expected: float
) -> None:
    line = Line(work_s, comes)
    at_once = Patience(start_s=60.0, limit_s=1.0, clear_s=1.0)
    assert workers_to_clear(line, num_ready, coming_s, at_once) == pytest.approx(expected)


def test_a_line_clears_within_the_time_that_the_promise_lets_requests_be_late() -> None:
    """0.99 of 900 s: 9 s. A line is no reason to order a cluster's worth of workers."""
    line, patience = Line(100.0, 0.5), Patience.of(cell(start_s=60.0))
    assert patience.clear_s == pytest.approx(9.0)
    assert workers_to_clear(line, 1, [], patience) == pytest.approx(70 / 9 + 0.5)
    always = Patience.of(cell(start_s=60.0, promise=Promise(target=1.0)))
    assert workers_to_clear(line, 1, [], always) == pytest.approx(70 + 0.5)


def _decode_bound(**sealed: object) -> View:
    """Decode is full, so KV stays sealed at prefill and prompts wait in front of it."""
    full = worker("d-0", num_free_blocks=0, num_attempts=300, num_unreserved_tokens=60_000)
    stuck = worker("p-0", num_queued_tokens=1_000_000, num_attempts=30, **sealed)
    arrivals = poisson(0.5, num_output=400)
    return cell(pool([stuck]), pool([full]), arrivals, Waiting(400, 1_500_000))


def test_a_load_that_decode_cannot_take_adds_decode_and_never_prefill() -> None:
    decision, _ = decide(_decode_bound(num_held_blocks=3990, num_free_blocks=10), Memory())
    assert replicas(decision)[0] == 1
    assert replicas(decision)[1] > 1


def test_the_same_line_is_prefills_where_its_pool_is_free() -> None:
    decision, _ = decide(_decode_bound(), Memory())
    assert replicas(decision)[0] > 1


def test_prompts_that_would_only_wait_for_decodes_blocks_add_no_prefill() -> None:
    full = worker("d-0", num_free_blocks=0, num_unreserved_tokens=2_000_000)
    view = cell(decode=pool([full]), arrivals=CALM, waiting=Waiting(400, 1_900_000))
    assert prefill_of(view).replicas == 1


def _pending(view: RoleView, unschedulable_s: float) -> RoleView:
    """One more is ordered, and the cluster has no place for its pod."""
    lost = PodView("pending", False, unschedulable_s + 1, unschedulable_s)
    return replace(view, replicas=view.replicas + 1, pods=(*pods(view.workers), lost))


BUSY = poisson(12.0)
"""more than two prefill workers"""


def both_of(number: int, waiting: Waiting = NOBODY, **fields: object) -> RoleDecision:
    """Of a cell whose decode workers compute prompts too."""
    both = pool(workers("d", number, **fields))
    arrivals, promise = poisson(2.5, num_output=200), Promise(gap_s=0.02)
    view = cell(decode=both, arrivals=arrivals, waiting=waiting, promise=promise)
    return decide(replace(view, roles={"decode": both}), Memory())[0].roles["decode"]


def test_workers_that_do_both_are_ordered_for_prompts_and_answers() -> None:
    """The same load on two roles needs one worker of each."""
    arrivals = poisson(2.5, num_output=200)
    apart, _ = decide(cell(arrivals=arrivals, promise=Promise(gap_s=0.02)), Memory())
    assert replicas(apart) == (1, 1)
    ordered = both_of(1)
    assert ordered.replicas == 3
    assert "with 2 decode workers" in ordered.reason
    given = "would have waited at most 1 s and had their tokens at most 20 ms apart, with 3 "
    assert f"requests {given}" in ordered.reason


@pytest.mark.parametrize(
    ("waiting", "queued"),
    [(Waiting(2000, 4_000_000), 0), (NOBODY, 2_000_000)],
    ids=["backlog", "taken"],
)
def test_prompts_that_wait_are_a_line_of_workers_that_do_both(
    waiting: Waiting, queued: int
) -> None:
    calm = both_of(3, num_queued_tokens=0)
    ordered = both_of(3, waiting, num_queued_tokens=queued)
    assert calm.replicas == 3 < ordered.replicas
    assert "s of one decode worker's work wait now" in ordered.reason


def test_a_pod_that_gets_no_place_is_taken_back_and_not_ordered_again_at_once() -> None:
    two = pool(workers("p", 2))
    waits = cell(_pending(two, 100.0), arrivals=BUSY)
    assert prefill_of(waits).replicas >= 3
    decision, memory = decide(cell(_pending(two, 121.0), arrivals=BUSY), Memory())
    assert decision.roles["prefill"].replicas == 2
    assert "no place for more than 2 prefill workers" in decision.holds
    placed = replace(two, pods=tuple(pods(two.workers)))
    soon, _ = decide(cell(placed, arrivals=BUSY), memory)
    assert soon.roles["prefill"].replicas == 2
    assert "no place" in soon.holds
    later_s = NOW_S + NO_PLACE_S + 1
    later = cell(placed, arrivals=poisson(12.0, until_s=later_s), now_s=later_s)
    assert decide(later, memory)[0].roles["prefill"].replicas > 2


def test_a_pod_that_gets_no_place_does_not_keep_the_pool_from_shrinking() -> None:
    pending = _pending(pool(workers("p", 3)), 1000.0)
    assert prefill_of(cell(pending, arrivals=CALM), IDLE).drain


def test_a_cold_workers_costs_order_nothing() -> None:
    slow = StepCosts(*(50 * cost for cost in COSTS))
    cold = worker("p-1", age_s=5.0, costs=slow)
    view = cell(pool([worker("p-0"), cold]), arrivals=CALM)
    assert prefill_of(view).replicas == 2
    warm = replace(cold, age_s=100.0)
    assert prefill_of(cell(pool([worker("p-0"), warm]), arrivals=CALM)).replicas > 2


def test_in_trouble_nothing_is_ordered_and_who_drains_serves_again() -> None:
    memory = Memory({"prefill": RoleMemory(0.0, victim="p-0.0", need=1)})
    view = cell(
        pool(workers("p", 3)), arrivals=BUSY, waiting=Waiting(9, 10**7), trouble="Redis is away"
    )
    decision, after = decide(view, memory)
    assert replicas(decision) == (3, 1)
    assert not decision.roles["prefill"].drain
    assert decision.holds == "Redis is away"
    assert after.roles["prefill"] == RoleMemory(need=1)


def test_a_worker_drains_first_and_its_pod_goes_when_it_is_empty_and_not_ready() -> None:
    three = [worker("p-0", num_attempts=2), worker("p-1", num_attempts=1), worker("p-2")]
    decision, memory = decide(cell(pool(three, pods(three)), arrivals=CALM), IDLE)
    assert decision.roles["prefill"].drain == ("p-2.0",)
    assert replicas(decision) == (3, 1)

    def next_one(victim: WorkerView, unready: tuple[str, ...], memory: Memory) -> RoleDecision:
        now = [*three[:2], victim]
        return prefill_of(cell(pool(now, pods(now, unready)), arrivals=CALM), memory)

    working = replace(three[2], num_attempts=1, is_draining=True)
    empty = replace(working, num_attempts=0)
    for step in (next_one(working, ("p-2",), memory), next_one(empty, (), memory)):
        assert (step.replicas, step.drain) == (3, ("p-2.0",))
    step = next_one(empty, ("p-2",), memory)
    assert (step.replicas, step.drain) == (2, ("p-2.0",))


def test_a_victim_takes_nothing_new_until_its_pod_is_gone_and_nobody_else_drains() -> None:
    three = workers("p", 3)
    three[2] = replace(three[2], is_draining=True)
    memory = Memory({"prefill": replace(IDLE.roles["prefill"], victim="p-2.0")})
    seen = pods(three, ["p-2"])
    decision, memory = decide(cell(pool(three, seen), arrivals=CALM), memory)
    assert decision.roles["prefill"].replicas == 2
    for _ in range(3):
        view = cell(pool(three, seen, replicas=2), arrivals=CALM)
        decision, memory = decide(view, memory)
        assert decision.roles["prefill"].replicas == 2
        assert decision.roles["prefill"].drain == ("p-2.0",)
    view = cell(pool(three[:2], pods(three[:2])), arrivals=CALM)
    decision, memory = decide(view, memory)
    assert decision.roles["prefill"].drain == ("p-0.0",)


def test_a_worker_that_goes_is_no_sign_that_more_are_needed() -> None:
    two = [worker("p-0"), worker("p-1", is_draining=True)]
    going = replace(IDLE.roles["prefill"], victim="p-1.0", is_going=True)
    view = cell(pool(two, pods(two, ["p-1"]), replicas=1), arrivals=CALM)
    _, after = decide(view, Memory({"prefill": going}))
    assert after.roles["prefill"].grew_s == going.grew_s


def test_without_a_cluster_an_empty_worker_that_drains_is_enough() -> None:
    memory = Memory({"prefill": replace(IDLE.roles["prefill"], victim="p-1.0")})
    two = [worker("p-0"), worker("p-1", is_draining=True)]
    assert prefill_of(cell(pool(two), arrivals=CALM), memory).replicas == 1


def test_load_that_comes_back_ends_the_drain_before_a_worker_is_ordered() -> None:
    memory = Memory({"prefill": replace(IDLE.roles["prefill"], victim="p-1.0")})
    two = [worker("p-0"), worker("p-1", is_draining=True, num_attempts=1)]
    decision, after = decide(cell(pool(two), arrivals=poisson(6.0)), memory)
    assert decision.roles["prefill"].replicas == 2
    assert not decision.roles["prefill"].drain
    assert after.roles["prefill"].victim == ""
    assert after.roles["prefill"].grew_s == NOW_S


def test_a_line_ends_a_drain_before_a_worker_is_ordered() -> None:
    memory = Memory({"prefill": replace(IDLE.roles["prefill"], victim="p-1.0")})
    two = [worker("p-0"), worker("p-1", is_draining=True, num_attempts=1)]
    view = cell(pool(two), arrivals=CALM, waiting=Waiting(350, 700_000))
    decision, _ = decide(view, memory)
    assert decision.roles["prefill"].replicas == 2
    assert not decision.roles["prefill"].drain


@pytest.mark.parametrize(
    "cause", ["too soon", "a pod starts", "one is not registered", "the other role drains"]
)
def test_no_worker_drains(cause: str) -> None:
    three, memory, decode = workers("p", 3), IDLE, pool(workers("d", 1))
    prefill = pool(three, pods(three))
    assert prefill_of(cell(prefill, arrivals=CALM), memory).drain
    if cause == "too soon":
        memory = Memory({"prefill": RoleMemory(NOW_S - HOLD_S + 1, need=1)})
    elif cause == "a pod starts":
        prefill = replace(prefill, replicas=4, pods=(*prefill.pods, PodView("new", False, 1.0)))
    elif cause == "one is not registered":
        prefill = pool(three, replicas=4)
    else:
        decode = pool([worker("d-0"), worker("d-1", is_draining=True, num_attempts=1)])
        memory = Memory({**IDLE.roles, "decode": RoleMemory(0.0, victim="d-1.0", need=1)})
    assert not prefill_of(cell(prefill, decode, CALM), memory).drain


def test_of_two_idle_roles_one_drains_at_a_time() -> None:
    idle = Memory({"prefill": IDLE.roles["prefill"], "decode": IDLE.roles["prefill"]})
    view = cell(pool(workers("p", 3)), pool(workers("d", 3)), CALM)
    decision, memory = decide(view, idle)
    assert [len(item.drain) for item in decision.roles.values()] == [1, 0]
    gone = {**view.roles, "prefill": pool([worker("p-9")])}
    decision, _ = decide(replace(view, roles=gone), memory)
    assert [len(item.drain) for item in decision.roles.values()] == [0, 1]


def test_more_that_were_needed_hold_the_next_worker_back() -> None:
    decision, after = decide(cell(pool(workers("p", 1)), arrivals=BUSY), IDLE)
    ordered = decision.roles["prefill"].replicas
    assert ordered > 1
    assert after.roles["prefill"].grew_s == NOW_S
    later_s = NOW_S + HOLD_S - 1
    view = cell(pool(workers("p", ordered)), arrivals=poisson(0.5, until_s=later_s), now_s=later_s)
    assert not prefill_of(view, after).drain
    assert prefill_of(replace(view, now_s=later_s + 2), after).drain


def test_where_no_worker_knows_its_costs_everything_stays() -> None:
    unknown = pool(workers("d", 3, costs=NO_COSTS))
    memory = Memory({"decode": RoleMemory(0.0)})
    decision, _ = decide(cell(decode=unknown, arrivals=CALM), memory)
    assert decision.roles["decode"] == RoleDecision(3, (), "no decode worker knows its costs")
    assert "no decode worker knows its costs" in decision.holds


def test_arrivals_that_are_lost_while_somebody_is_served_shrink_nothing() -> None:
    busy = cell(pool(workers("p", 3, num_attempts=1)), pool(workers("d", 1, num_attempts=3)))
    assert not prefill_of(busy, IDLE).drain
    assert prefill_of(cell(pool(workers("p", 3))), IDLE).drain
