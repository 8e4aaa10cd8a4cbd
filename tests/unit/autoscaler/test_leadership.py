"""Which process leads, for any order of looks, writes, pauses and lost answers."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from services.autoscaler.kube.api import CONNECT_S, READ_S
from services.autoscaler.kube.leadership import (
    ABSENT,
    DURATION_S,
    LEAD_S,
    RENEW_S,
    Leadership,
    Lease,
)
from tests.support.fakes.manual_clock import ManualClock

PAUSES_S = (0.0, 0.0, 0.0, RENEW_S, LEAD_S - 1, LEAD_S, DURATION_S - 1, DURATION_S, 60.0)


class Server:
    """One lease and one scale. Each write wants the version that was read."""

    def __init__(self) -> None:
        self.lease = ABSENT
        self.scale_version = 0
        self.ordered: list[tuple[int, str]] = []
        """(term, who) of each order"""
        self._num_writes = 0

    def write(self, read: Lease, holder: str) -> bool:
        if read.version != self.lease.version:
            return False
        self._num_writes += 1
        is_taken = holder not in ("", read.holder)
        self.lease = replace(
            read,
            holder=holder,
            version=str(self._num_writes),
            num_transitions=read.num_transitions + is_taken,
        )
        return True

    def order(self, who: str, version: int) -> bool:
        if version != self.scale_version:
            return False
        self.scale_version += 1
        self.ordered.append((self.lease.num_transitions, who))
        return True


@dataclass
class Contender:
    """A process that looks at the lease again and again; it may pause after each step."""

    leadership: Leadership
    server: Server
    clock: ManualClock
    loses_answer: bool = False

    def steps(self) -> Iterator[None]:
        while True:
            lease = self.server.lease
            yield
            move = self.leadership.see(lease, self.clock.monotonic_s())
            if move == "wait":
                yield
                continue
            sent_s = self.clock.monotonic_s()
            yield
            written = self.server.write(lease, self.leadership.identity)
            yield
            if written and not self.loses_answer:
                self.leadership.renewed(sent_s)
            self.loses_answer = False
            yield


def contenders(number: int, server: Server, clock: ManualClock) -> list[Contender]:
    return [Contender(Leadership(f"pod-{index}"), server, clock) for index in range(number)]


def holders(of: list[Contender], now_s: float) -> list[str]:
    return [each.leadership.identity for each in of if each.leadership.holds(now_s)]


ACTIONS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.integers(1, 6),
        st.sampled_from(PAUSES_S),
        st.sampled_from(("", "", "", "", "loses", "ends")),
    ),
    max_size=60,
)


@settings(max_examples=600, deadline=None)
@given(number=st.integers(2, 3), actions=ACTIONS)
@example(  # the first takes the lease and hears of it when another has waited long enough
    number=2,
    actions=[(0, 3, 0.0, ""), (1, 2, DURATION_S, ""), (1, 5, 0.0, ""), (0, 2, 0.0, "")],
)
def test_at_most_one_leads_at_any_time(
    number: int, actions: list[tuple[int, int, float, str]]
) -> None:
    server, clock = Server(), ManualClock()
    group = contenders(number, server, clock)
    running = [each.steps() for each in group]
    for who, num_steps, pause_s, event in actions:
        contender = group[who % number]
        if event == "ends":
            contender.leadership.end()
            if server.lease.holder == contender.leadership.identity:
                server.write(server.lease, "")
        contender.loses_answer |= event == "loses"
        for _ in range(num_steps):
            next(running[who % number])
            assert len(holders(group, clock.monotonic_s())) <= 1
        clock.advance(pause_s)


@settings(max_examples=100, deadline=None)
@given(
    number=st.integers(2, 3),
    first=st.integers(0, 2),
    waits_s=st.lists(st.sampled_from((RENEW_S, RENEW_S / 2)), min_size=3, max_size=3),
)
def test_when_a_leader_dies_another_leads_within_its_duration_and_two_looks(
    number: int, first: int, waits_s: list[float]
) -> None:
    server, clock = Server(), ManualClock()
    group = contenders(number, server, clock)
    leader = group[first % number]
    others = [each for each in group if each is not leader]
    look(leader)
    assert holders(group, clock.monotonic_s()) == [leader.leadership.identity]
    died_s = clock.monotonic_s()
    while not holders(others, clock.monotonic_s()):
        for other, wait_s in zip(others, waits_s, strict=False):
            look(other)
            clock.advance(wait_s / len(others))
        assert clock.monotonic_s() <= died_s + DURATION_S + 2 * RENEW_S


def test_two_leaders_a_paused_one_wakes_up_and_writes_nothing_more_in_any_term() -> None:
    server, clock = Server(), ManualClock()
    old, new = contenders(2, server, clock)
    look(old)
    look(new)
    version = server.scale_version
    assert orders(old, version)
    seen_by_paused = server.scale_version
    clock.advance(DURATION_S)
    look(new)
    assert not orders(old, seen_by_paused), "it wakes with what it had read before"
    assert orders(new, server.scale_version)
    look(old)
    assert not orders(old, server.scale_version), "it wakes and reads everything again"
    assert server.ordered == [(1, "pod-0"), (2, "pod-1")]


@settings(max_examples=300, deadline=None)
@given(actions=st.lists(st.tuples(st.integers(0, 1), st.sampled_from(PAUSES_S)), max_size=40))
def test_each_term_has_one_writer_whoever_pauses(actions: list[tuple[int, float]]) -> None:
    server, clock = Server(), ManualClock()
    group = contenders(2, server, clock)
    for who, pause_s in actions:
        look(group[who])
        version = server.scale_version
        clock.advance(pause_s)
        orders(group[who], version)
    writers: dict[int, set[str]] = {}
    for term, who_wrote in server.ordered:
        writers.setdefault(term, set()).add(who_wrote)
    assert all(len(names) == 1 for names in writers.values())


def look(contender: Contender) -> None:
    """One whole look that nothing interrupts."""
    server, clock = contender.server, contender.clock
    lease, now_s = server.lease, clock.monotonic_s()
    moves = contender.leadership.see(lease, now_s) != "wait"
    if moves and server.write(lease, contender.leadership.identity):
        contender.leadership.renewed(now_s)


def orders(contender: Contender, version: int) -> bool:
    """What a leader does: it asks whether it leads, then writes."""
    holds = contender.leadership.holds(contender.clock.monotonic_s())
    return holds and contender.server.order(contender.leadership.identity, version)


def test_a_released_lease_is_taken_at_once_and_never_again_by_whoever_released_it() -> None:
    server, clock = Server(), ManualClock()
    old, new = contenders(2, server, clock)
    look(old)
    look(new)
    old.leadership.end()
    assert holders([old, new], 0.0) == []
    server.write(server.lease, "")
    look(old)
    assert server.lease.holder == ""
    look(new)
    assert holders([old, new], 0.0) == ["pod-1"]
    assert server.lease.num_transitions == 2


def test_another_s_lease_is_not_taken_while_it_changes() -> None:
    leadership = Leadership("me")
    for number in range(20):
        lease = Lease(holder="other", version=str(number))
        assert leadership.see(lease, number * (DURATION_S - 1)) == "wait"


def test_a_longer_duration_is_waited_for_and_a_shorter_one_is_not_believed() -> None:
    for duration_s, waits_s in ((40.0, 40.0), (1.0, DURATION_S)):
        leadership = Leadership("me")
        lease = Lease(holder="other", version="1", duration_s=duration_s)
        assert leadership.see(lease, 0.0) == "wait"
        assert leadership.see(lease, waits_s - 0.1) == "wait"
        assert leadership.see(lease, waits_s) == "take"


def test_a_renewal_holds_for_less_than_ten_seconds_from_before_it_was_sent() -> None:
    leadership = Leadership("me")
    assert not leadership.holds(0.0)
    leadership.renewed(5.0)
    assert leadership.holds(14.9)
    assert not leadership.holds(15.0)


def test_a_write_sent_by_a_leader_arrives_or_has_failed_before_another_leads() -> None:
    assert CONNECT_S + READ_S <= DURATION_S - LEAD_S


def test_whoever_sees_another_s_lease_leads_no_more() -> None:
    leadership = Leadership("me")
    leadership.renewed(0.0)
    leadership.see(Lease(holder="other", version="2"), 1.0)
    assert not leadership.holds(1.0)


def test_a_leader_whose_answer_was_lost_renews_what_it_then_finds_to_be_its_own() -> None:
    leadership = Leadership("me")
    assert leadership.see(ABSENT, 0.0) == "take"
    assert leadership.see(Lease(holder="me", version="1"), 4.0) == "renew"
