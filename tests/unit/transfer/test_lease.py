"""Leases: everything expired is found in one look, nothing renewed is, whatever the order."""

import heapq

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from shared.transfer.lease import LeaseHeap


def test_a_renewed_head_does_not_hide_expired_leases_behind_it() -> None:
    leases: LeaseHeap[str] = LeaseHeap()
    leases.start("head", 1.0)
    leases.start("behind", 2.0)
    leases.renew("head", 10.0)
    assert leases.pop_expired(5.0) == ["behind"]
    assert leases.pop_expired(9.9) == []
    assert leases.pop_expired(10.0) == ["head"]
    assert len(leases) == 0


def test_renewing_never_shortens_and_never_revives() -> None:
    leases: LeaseHeap[str] = LeaseHeap()
    leases.start("a", 5.0)
    leases.renew("a", 3.0)
    assert leases.pop_expired(4.0) == []
    leases.stop("a")
    leases.renew("a", 9.0)
    assert leases.pop_expired(99.0) == []


def test_the_heap_does_not_grow_with_renewals() -> None:
    leases: LeaseHeap[str] = LeaseHeap()
    leases.start("a", 1.0)
    for second in range(10_000):
        leases.renew("a", second + 1.0)
    assert len(leases._heap) == 1


class LeaseMachine(RuleBasedStateMachine):
    """Against a plain dict that is searched from end to end."""

    heap_type: type[LeaseHeap[int]] = LeaseHeap

    def __init__(self) -> None:
        super().__init__()
        self.leases = self.heap_type()
        self.model: dict[int, float] = {}
        self.now_s = 0.0

    @rule(key=st.integers(0, 5), length_s=st.integers(0, 10))
    def start_or_renew(self, key: int, length_s: int) -> None:
        expiry_s = self.now_s + length_s
        if key in self.model:
            self.leases.renew(key, expiry_s)
            self.model[key] = max(self.model[key], expiry_s)
        else:
            self.leases.start(key, expiry_s)
            self.model[key] = expiry_s

    @rule(key=st.integers(0, 5))
    def stop(self, key: int) -> None:
        self.leases.stop(key)
        self.model.pop(key, None)

    @rule(seconds_s=st.integers(0, 6))
    def pass_time(self, seconds_s: int) -> None:
        self.now_s += seconds_s
        expired = {key for key, expiry_s in self.model.items() if expiry_s <= self.now_s}
        popped = self.leases.pop_expired(self.now_s)
        assert len(popped) == len(expired)
        assert set(popped) == expired
        for key in expired:
            del self.model[key]

    @invariant()
    def same_leases(self) -> None:
        assert len(self.leases) == len(self.model)


TestLeaseMachine = LeaseMachine.TestCase


class StrandingHeap(LeaseHeap[int]):
    """Looks at the head only and gives up when it was renewed."""

    def pop_expired(self, now_s: float) -> list[int]:
        expired: list[int] = []
        while self._heap and self._heap[0][0] <= now_s:
            key = self._heap[0][2]
            if self._expiry_s.get(key, now_s) > now_s:
                break
            heapq.heappop(self._heap)
            if self._expiry_s.pop(key, None) is not None:
                expired.append(key)
        return expired


def test_the_machine_finds_a_heap_that_strands_leases() -> None:
    class MutantMachine(LeaseMachine):
        heap_type = StrandingHeap

    with pytest.raises(AssertionError):
        run_state_machine_as_test(
            MutantMachine,
            settings=settings(
                max_examples=300, database=None, derandomize=True, phases=(Phase.generate,)
            ),
        )
