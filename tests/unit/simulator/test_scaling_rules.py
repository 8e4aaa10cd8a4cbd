"""Each rival's rule on a series computed by hand.

Guarded against: a straw man. Tolerance, windows and limits are those of Kubernetes' documentation.
"""

import pytest

from services.autoscaler.view import Arrival, PodView, RoleView, View, WorkerView
from services.simulator.cell import Setup
from services.simulator.policies.backlog_rule import GUIDE, BacklogPolicy
from services.simulator.policies.catalogue import candidate
from services.simulator.policies.foresight import ForesightPolicy
from services.simulator.policies.pace import Behaviour, Pace, by_average, by_ratio
from services.simulator.policies.planner import PlannerPolicy
from services.simulator.policies.policy import Policy, Seen
from services.simulator.policies.static import StaticPolicy
from services.simulator.policies.utilisation import UtilisationPolicy
from services.simulator.worker_kind import DECODE, PREFILL
from shared.errors import SettingsError
from shared.queue.backlog import Waiting


def role(replicas: int, num_ready: int | None = None, queued: int = 0, most: int = 32) -> RoleView:
    """`queued`: tokens at each ready worker."""
    ready = replicas if num_ready is None else num_ready
    workers = [
        WorkerView(f"w-{at}", f"w-{at}", 1000, num_queued_tokens=queued, costs=PREFILL.costs)
        for at in range(ready)
    ]
    pods = [PodView(f"w-{at}", at < ready, 1000) for at in range(replicas)]
    return RoleView(replicas, 1, most, tuple(workers), tuple(pods), 1)


def asked(
    policy: Policy,
    now_s: float,
    prefill: RoleView,
    busy: float = 0.0,
    arrivals: tuple[Arrival, ...] = (),
    waiting: int = 0,
) -> int:
    view = View(now_s, {"prefill": prefill}, arrivals, Waiting(1, waiting), start_s=90.0)
    return policy.decide(Seen(view, {"prefill": busy}, 0.0)).roles["prefill"].replicas


@pytest.mark.parametrize(
    ("ratio", "pool", "wanted"),
    [
        (1.5, role(4), 6),
        (1.09, role(4), 4),
        (0.91, role(4), 4),
        (0.5, role(4), 2),
        (1.5, role(4, num_ready=3), 5),
        (1.3, role(4, num_ready=3), 4),
        (0.5, role(4, num_ready=2), 1),
        (2.0, role(4, num_ready=0), 4),
    ],
)
def test_replicas_follow_the_ratio_and_those_that_start_count_as_idle(
    ratio: float, pool: RoleView, wanted: int
) -> None:
    assert by_ratio(ratio, pool) == wanted


@pytest.mark.parametrize(("total", "wanted"), [(0.0, 0), (4.2, 4), (4.5, 5), (9.0, 9), (3.5, 4)])
def test_an_average_is_shared_among_the_replicas(total: float, wanted: int) -> None:
    assert by_average(total, 1.0, role(4)) == wanted


def test_the_default_pace_adds_four_or_doubles_and_waits_before_it_takes_away() -> None:
    pace, now = Pace(Behaviour()), 2
    found = []
    for at_s, wish in ((15, 30), (30, 30), (45, 2), (315, 2), (330, 2), (345, 2)):
        now = pace.order(at_s, wish, role(now))
        found.append(now)
    assert found == [6, 12, 12, 12, 2, 2]


def test_the_guides_pace_is_one_up_in_180_s_and_one_down_in_300_s() -> None:
    pace, now, found = Pace(GUIDE), 2, []
    for at_s in range(15, 1500, 15):
        now_before, now = now, pace.order(at_s, 9 if at_s < 400 else 1, role(now))
        if now != now_before:
            found.append((at_s, now))
    assert found == [(15, 3), (195, 4), (375, 5), (690, 4), (990, 3), (1290, 2)]


def test_utilisation_follows_the_busy_share() -> None:
    assert asked(UtilisationPolicy(0.5), 15, role(4), busy=0.75) == 6
    assert asked(UtilisationPolicy(0.5), 15, role(4), busy=0.52) == 4


def test_a_rate_over_two_minutes_sees_a_burst_little_by_little() -> None:
    """At its target for a minute, then twice as busy; the freshest metric sees that at once."""
    late, fresh = UtilisationPolicy(0.5, 120.0), UtilisationPolicy(0.5)
    orders = []
    for turn in range(1, 13):
        busy = 1.0 if turn > 4 else 0.5
        orders.append([asked(policy, 15.0 * turn, role(4), busy=busy) for policy in (late, fresh)])
    assert [order for order, _ in orders] == [4, 4, 4, 4, 5, 6, 6, 6, 7, 7, 8, 8]
    assert [order for _, order in orders] == [4] * 4 + [8] * 8


def test_tokens_that_wait_are_seconds_of_a_workers_time() -> None:
    """100,000 tokens at 60 us, 20,000 of each of 4 workers: 10.8 s, of which each may have 1."""
    policy = BacklogPolicy(PREFILL.token_s, Behaviour())
    assert asked(policy, 15, role(4, queued=20_000), waiting=100_000) == 8
    assert asked(policy, 30, role(8, queued=20_000), waiting=20_000) == 11


def test_the_planner_forecasts_what_the_last_interval_brought() -> None:
    """25,000 tokens a second are one and a half workers'."""
    arrivals = tuple(Arrival(float(at), 25_000) for at in range(1, 181))
    policy = PlannerPolicy(PREFILL, DECODE, by_load=False)
    assert asked(policy, 180, role(4), arrivals=arrivals) == 2
    assert asked(policy, 185, role(4), arrivals=()) == 2


def test_the_planner_sees_queues_at_workers_and_not_before_them() -> None:
    policy = PlannerPolicy(PREFILL, DECODE, by_load=True)
    assert asked(policy, 5, role(4, queued=17_000)) == 5
    assert asked(policy, 10, role(4, num_ready=3, queued=17_000)) == 4
    assert asked(policy, 15, role(4, queued=1000), waiting=10**9) == 3
    assert asked(policy, 20, role(4, queued=11_000)) == 4


def test_foresight_orders_for_what_comes_after_a_start() -> None:
    """Nothing for 400 s, then ten workers' work; a start takes 90 s."""
    arrivals = [Arrival(400 + at * 0.01, 1667) for at in range(20_000)]
    policy = ForesightPolicy(arrivals)
    assert asked(policy, 100, role(3)) == 1
    assert asked(policy, 180, role(1)) == 1
    assert asked(policy, 300, role(1)) >= 10
    assert asked(policy, 700, role(12)) == 1


def test_a_static_number_stays() -> None:
    assert asked(StaticPolicy({"prefill": 7}), 15, role(7), busy=1.0) == 7


@pytest.mark.parametrize(
    "name",
    [
        "replay",
        "replay-0.95",
        "foresight",
        "hpa-0.5",
        "hpa2m-0.5",
        "keda",
        "keda-hpa",
        "planner",
        "static-3",
    ],
)
def test_a_policy_has_a_name(name: str) -> None:
    found = candidate(name, Setup(), [])
    assert found.name == name
    assert found.make() is not found.make(), "two runs would share what it remembers"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("hpa", "give it a share, as hpa-0.7"),
        ("hpa-7", "'7' is no share"),
        ("replay-x", "'x' is no share"),
        ("static-0", "takes static-N"),
        ("static-2x2", "takes static-N"),
        ("magic", "there are static-N, replay"),
    ],
)
def test_another_name_is_told_what_there_is(name: str, said: str) -> None:
    with pytest.raises(SettingsError, match=f"--policy {name}: .*{said}"):
        candidate(name, Setup(), [])
