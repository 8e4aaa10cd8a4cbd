"""The lease of the leader, over HTTP."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from services.autoscaler.kube.api import KubeApi
from services.autoscaler.kube.cluster import ClusterUnavailableError
from services.autoscaler.kube.leadership import DURATION_S, LEAD_S, RENEW_S, Leadership
from services.autoscaler.kube.lease import KubernetesLease
from tests.support.fakes.kube_api import NAMESPACE, Asked, FakeKubeApi
from tests.support.fakes.manual_clock import ManualClock

NAME = "rel-baton-autoscaler"
Connect = Callable[..., KubeApi]


@dataclass
class Contender:
    """One autoscaler as far as it leads."""

    lease: KubernetesLease
    leadership: Leadership
    clock: ManualClock

    @property
    def leads(self) -> bool:
        return self.leadership.holds(self.clock.monotonic_s())


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(start_s=1000.0)


Contend = Callable[[str], Contender]


@pytest.fixture
def contend(connect: Connect, clock: ManualClock) -> Contend:
    def contender(identity: str) -> Contender:
        leadership = Leadership(identity)
        lease = KubernetesLease(connect(), leadership, clock, namespace=NAMESPACE, name=NAME)
        return Contender(lease, leadership, clock)

    return contender


def spec(server: FakeKubeApi) -> dict[str, object]:
    kept: dict[str, object] = server.leases[NAME]["spec"]
    return kept


def test_the_first_makes_the_lease_and_the_second_waits(
    server: FakeKubeApi, contend: Contend
) -> None:
    first, second = contend("pod-a"), contend("pod-b")
    assert not first.leads
    first.lease.look()
    second.lease.look()
    assert (first.leads, second.leads) == (True, False)
    assert spec(server)["holderIdentity"] == "pod-a"
    assert spec(server)["leaseDurationSeconds"] == DURATION_S
    assert spec(server)["leaseTransitions"] == 1


def test_a_leader_that_renews_leads_on_and_the_other_goes_on_waiting(
    server: FakeKubeApi, contend: Contend, clock: ManualClock
) -> None:
    first, second = contend("pod-a"), contend("pod-b")
    first.lease.look()
    acquired = spec(server)["acquireTime"]
    for _ in range(20):
        second.lease.look()
        clock.advance(RENEW_S)
        first.lease.look()
        assert (first.leads, second.leads) == (True, False)
    assert spec(server)["leaseTransitions"] == 1
    assert spec(server)["acquireTime"] == acquired
    assert spec(server)["renewTime"] != acquired


def test_a_paused_leader_that_wakes_up_does_not_lead_and_its_renewal_fails(
    server: FakeKubeApi, contend: Contend, clock: ManualClock
) -> None:
    paused, other = contend("pod-a"), contend("pod-b")
    paused.lease.look()
    other.lease.look()
    clock.advance(DURATION_S - 1)
    other.lease.look()
    assert not other.leads
    clock.advance(1)
    other.lease.look()
    assert (paused.leads, other.leads) == (False, True)
    paused.lease.look()
    assert (paused.leads, other.leads) == (False, True)
    assert spec(server)["leaseTransitions"] == 2


def test_a_leader_paused_between_reading_and_renewing_loses_to_whoever_took_the_lease(
    server: FakeKubeApi, contend: Contend, clock: ManualClock
) -> None:
    paused, other = contend("pod-a"), contend("pod-b")
    paused.lease.look()
    other.lease.look()

    def pauses(asked: Asked) -> None:
        if asked.verb == "update":
            server.before = lambda _: None
            clock.advance(DURATION_S)
            other.lease.look()

    server.before = pauses
    paused.lease.look()
    assert (paused.leads, other.leads) == (False, True)


def test_a_slow_look_counts_from_its_answer(
    server: FakeKubeApi, contend: Contend, clock: ManualClock
) -> None:
    leader, other = contend("pod-a"), contend("pod-b")
    leader.lease.look()

    def leader_renews_meanwhile(asked: Asked) -> None:
        server.before = lambda _: None
        clock.advance(LEAD_S - 1)
        leader.lease.look()

    server.before = leader_renews_meanwhile
    other.lease.look()
    clock.advance(DURATION_S - LEAD_S + 1)
    other.lease.look()
    assert (leader.leads, other.leads) == (True, False)


def test_of_two_that_make_the_lease_at_once_one_leads(
    server: FakeKubeApi, contend: Contend
) -> None:
    slow, fast = contend("pod-a"), contend("pod-b")

    def overtakes(asked: Asked) -> None:
        if asked.verb == "create":
            server.before = lambda _: None
            fast.lease.look()

    server.before = overtakes
    slow.lease.look()
    assert (slow.leads, fast.leads) == (False, True)
    assert spec(server)["holderIdentity"] == "pod-b"


def test_a_leader_cut_off_from_the_api_gives_up_before_another_may_take_over(
    server: FakeKubeApi, contend: Contend, clock: ManualClock
) -> None:
    leader = contend("pod-a")
    leader.lease.look()
    server.is_broken = True
    clock.advance(LEAD_S - 0.1)
    with pytest.raises(ClusterUnavailableError):
        leader.lease.look()
    assert leader.leads
    clock.advance(0.1)
    assert not leader.leads
    server.is_broken = False
    leader.lease.look()
    assert leader.leads
    assert spec(server)["leaseTransitions"] == 1


def test_a_renewal_whose_answer_is_lost_counts_only_once_a_later_one_is_answered(
    server: FakeKubeApi, contend: Contend, clock: ManualClock
) -> None:
    leader = contend("pod-a")

    def loses_answers_of_writes(asked: Asked) -> None:
        server.hangs_up = asked.verb != "get"

    server.before = loses_answers_of_writes
    with pytest.raises(ClusterUnavailableError):
        leader.lease.look()
    assert spec(server)["holderIdentity"] == "pod-a"
    assert not leader.leads
    server.before, server.hangs_up = lambda _: None, False
    leader.lease.look()
    assert leader.leads
    assert spec(server)["leaseTransitions"] == 1


def test_a_renewal_counts_from_before_it_was_sent(
    server: FakeKubeApi, contend: Contend, clock: ManualClock
) -> None:
    leader = contend("pod-a")
    server.before = lambda asked: clock.advance(LEAD_S) if asked.verb == "create" else None
    leader.lease.look()
    assert spec(server)["holderIdentity"] == "pod-a"
    assert not leader.leads


def test_a_released_lease_is_taken_at_once(server: FakeKubeApi, contend: Contend) -> None:
    old, new = contend("pod-a"), contend("pod-b")
    old.lease.look()
    new.lease.look()
    old.lease.release()
    assert not old.leads
    assert spec(server)["holderIdentity"] == ""
    old.lease.look()
    new.lease.look()
    assert (old.leads, new.leads) == (False, True)
    assert spec(server)["leaseTransitions"] == 2


def test_a_release_waits_for_the_look_under_way(server: FakeKubeApi, contend: Contend) -> None:
    leader = contend("pod-a")
    leader.lease.look()
    release = threading.Thread(target=leader.lease.release)
    asked_meanwhile: list[Asked] = []

    def releases(asked: Asked) -> None:
        if asked.verb == "update":
            server.before = asked_meanwhile.append
            release.start()
            time.sleep(0.3)
            server.before = lambda _: None

    server.before = releases
    leader.lease.look()
    release.join()
    assert asked_meanwhile == []
    assert not leader.leads
    assert spec(server)["holderIdentity"] == ""


def test_whoever_does_not_hold_the_lease_leaves_it_alone_when_it_ends(
    server: FakeKubeApi, contend: Contend
) -> None:
    leader, other, early = contend("pod-a"), contend("pod-b"), contend("pod-c")
    early.lease.release()
    assert server.leases == {}
    leader.lease.look()
    other.lease.release()
    assert leader.leads
    assert spec(server)["holderIdentity"] == "pod-a"


def test_whoever_cannot_release_leads_no_more_all_the_same(
    server: FakeKubeApi, contend: Contend
) -> None:
    leader = contend("pod-a")
    leader.lease.look()
    server.is_broken = True
    with pytest.raises(ClusterUnavailableError):
        leader.lease.release()
    assert not leader.leads


def test_a_lease_that_somebody_wrote_by_hand_is_taken_over_and_renewed(
    server: FakeKubeApi, contend: Contend, clock: ManualClock
) -> None:
    whole_second = "2026-01-01T00:00:00.000000Z"
    server.leases[NAME] = {
        "metadata": {"name": NAME, "resourceVersion": "7"},
        "spec": {"holderIdentity": "pod-a", "acquireTime": whole_second},
    }
    leader = contend("pod-a")
    leader.lease.look()
    assert leader.leads
    del server.leases[NAME]["spec"]
    clock.advance(RENEW_S)
    leader.lease.look()
    assert leader.leads
