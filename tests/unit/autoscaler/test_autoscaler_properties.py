"""What holds of every decision, whatever is seen and remembered.

Guarded against: an order beyond a limit, two drains at once, a decision that hangs on anything but
its arguments, and a view that stops the autoscaler.
"""

from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from services.autoscaler.planning.policy import decide
from services.autoscaler.view import (
    ROLES,
    Arrival,
    Memory,
    PodView,
    Promise,
    RoleMemory,
    RoleView,
    View,
    WorkerView,
)
from shared.message_parts.step_costs import NO_COSTS, StepCosts
from shared.queue.backlog import Waiting
from tests.support.cell_views import cell, pool, workers

SECONDS = st.floats(0, 2000)
SMALL = st.integers(0, 5)
TOKENS = st.integers(0, 100_000)
NAMES = st.sampled_from(["w-0", "w-1", "w-2", "w-3"])
COST = st.just(0.0) | st.floats(0, 0.01)
PROPERTIES = settings(max_examples=300)


def _some(of: st.SearchStrategy[object], most: int) -> st.SearchStrategy[object]:
    return st.lists(of, max_size=most).map(tuple)


WORKERS = st.builds(
    WorkerView,
    name=NAMES,
    incarnation=NAMES,
    age_s=SECONDS,
    is_draining=st.booleans(),
    num_attempts=SMALL,
    num_queued_tokens=TOKENS,
    num_held_blocks=st.integers(0, 2000),
    num_free_blocks=st.integers(0, 2000),
    num_blocks=st.integers(0, 2000),
    num_unreserved_tokens=TOKENS,
    costs=st.just(NO_COSTS) | st.builds(StepCosts, COST, COST, COST, COST, COST),
    step_tokens=st.integers(0, 4096),
    block_size=st.integers(0, 32),
)
PODS = st.builds(
    PodView,
    name=NAMES,
    is_ready=st.booleans(),
    age_s=SECONDS,
    unschedulable_s=st.none() | SECONDS,
)


@st.composite
def _pools(draw: st.DrawFn) -> RoleView:
    least = draw(SMALL)
    return RoleView(
        replicas=draw(st.integers(0, 12)),
        least=least,
        most=draw(st.integers(least, 10)),
        workers=draw(_some(WORKERS, 4)),  # type: ignore[arg-type]
        pods=draw(_some(PODS, 4)),  # type: ignore[arg-type]
        num_gpus=draw(SMALL),
    )


ARRIVALS = st.lists(
    st.builds(Arrival, SECONDS, TOKENS, TOKENS, st.integers(0, 2000)), max_size=20
).map(lambda found: tuple(sorted(found, key=lambda item: item.at_s)))
VIEWS = st.builds(
    View,
    now_s=SECONDS,
    roles=st.dictionaries(st.sampled_from(ROLES), _pools()),
    arrivals=ARRIVALS,
    waiting=st.builds(Waiting, SMALL, TOKENS),
    promise=st.builds(Promise, st.floats(0, 5), st.floats(0, 0.2), st.floats(0, 1)),
    start_s=st.floats(0, 300),
    max_gpus=st.none() | st.integers(0, 30),
    trouble=st.sampled_from(["", "", "", "Redis is away"]),
)
MEMORIES = st.builds(
    Memory,
    st.dictionaries(
        st.sampled_from(ROLES),
        st.builds(
            RoleMemory,
            grew_s=st.none() | SECONDS,
            victim=st.just("") | NAMES,
            is_going=st.booleans(),
            need=st.integers(0, 20),
            placeable=SMALL,
            no_place_s=st.none() | SECONDS,
        ),
    ),
)


@PROPERTIES
@given(view=VIEWS, memory=MEMORIES)
def test_every_view_gets_a_decision_for_each_role_and_always_the_same(
    view: View, memory: Memory
) -> None:
    decision, after = decide(view, memory)
    assert set(decision.roles) == set(view.roles)
    assert decide(view, memory) == (decision, after)
    assert all(item.reason for item in decision.roles.values())


@PROPERTIES
@given(view=VIEWS, memory=MEMORIES)
def test_an_order_stays_between_the_least_and_the_most(view: View, memory: Memory) -> None:
    """What is beyond the most already goes one by one. In a cell without a budget nothing keeps a
    role below its least."""
    decision, _ = decide(view, memory)
    for role, pool_view in view.roles.items():
        ordered = decision.roles[role].replicas
        assert ordered <= max(pool_view.most, pool_view.replicas)
        assert ordered >= min(pool_view.least, pool_view.replicas)
        if view.max_gpus is None and not view.trouble:
            assert ordered >= pool_view.least


@PROPERTIES
@given(view=VIEWS, memory=MEMORIES)
def test_no_order_takes_more_gpus_than_the_budget_or_than_are_ordered(
    view: View, memory: Memory
) -> None:
    assume(view.max_gpus is not None)
    decision, _ = decide(view, memory)
    before = sum(item.replicas * item.num_gpus for item in view.roles.values())
    ordered = sum(
        decision.roles[role].replicas * item.num_gpus for role, item in view.roles.items()
    )
    assert ordered <= max(view.max_gpus or 0, before)


@PROPERTIES
@given(view=VIEWS, memory=MEMORIES)
def test_at_most_one_worker_of_all_drains(view: View, memory: Memory) -> None:
    """No decision remembers a second victim, so no memory brings one."""
    assume(sum(bool(item.victim) for item in memory.roles.values()) <= 1)
    decision, after = decide(view, memory)
    drained = [name for item in decision.roles.values() for name in item.drain]
    victims = [item.victim for item in after.roles.values() if item.victim]
    assert len(drained) <= 1
    assert drained == victims
    known = {worker.incarnation for item in view.roles.values() for worker in item.workers}
    assert set(drained) <= known


@PROPERTIES
@given(view=VIEWS, memory=MEMORIES)
def test_trouble_leaves_everything_as_it_is(view: View, memory: Memory) -> None:
    decision, _ = decide(replace(view, trouble="Redis is away"), memory)
    for role, pool_view in view.roles.items():
        assert decision.roles[role].replicas == pool_view.replicas
        assert not decision.roles[role].drain


NUMBER = st.integers(1, 400)
CROWDS = st.lists(
    st.builds(Arrival, st.floats(0, 60), st.integers(1, 30_000), st.just(0), NUMBER),
    min_size=1,
    max_size=60,
).map(lambda found: tuple(sorted(found, key=lambda item: item.at_s)))


def _needed(arrivals: tuple[Arrival, ...]) -> tuple[int, int]:
    """By (prefill, decode), without a budget: an order comes at once."""
    roles = (pool(workers("p", 1), most=40), pool(workers("d", 1, num_blocks=4000), most=40))
    ready = cell(*roles, arrivals, promise=Promise(gap_s=0.006))
    decision, _ = decide(ready, Memory())
    return decision.roles["prefill"].replicas, decision.roles["decode"].replicas


@PROPERTIES
@given(arrivals=CROWDS, num_more=st.integers(0, 20_000))
def test_more_of_every_arrival_never_lowers_a_need(
    arrivals: tuple[Arrival, ...], num_more: int
) -> None:
    """Everybody twice, or with a longer prompt. (A single easy request more may raise the share of
    those in time.)"""
    needed = _needed(arrivals)
    twice = _needed(tuple(item for item in arrivals for _ in range(2)))
    longer = _needed(
        tuple(
            replace(item, num_prompt_tokens=item.num_prompt_tokens + num_more) for item in arrivals
        )
    )
    assert twice[0] >= needed[0]
    assert twice[1] >= needed[1]
    assert longer[0] >= needed[0]
