"""Start-time fair queuing: the fairness bounds of its papers, on the twin of the Lua."""

import asyncio
import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.protocol import DEFAULT_PRIORITY
from shared.queue.backlog import Backlog, BacklogEntry, PutStatus, by_weight
from shared.queue.memory_backlog import MemoryBacklog

TOKENS = st.lists(st.integers(1, 40), min_size=1, max_size=20)


class ByArrival(MemoryBacklog):
    """Mutant: first come, first served."""

    def _add(self, entry: BacklogEntry, start: int | None) -> int:
        return self._num_arrivals


async def widest_gap(backlog: Backlog, loads: list[list[int]]) -> int:
    """Largest difference of tokens served to two tenants while both wait."""
    waiting = [len(load) for load in loads]
    for tenant, load in enumerate(loads):
        for n, tokens in enumerate(load):
            await backlog.put(BacklogEntry(f"{tenant}.{n}", "g", str(tenant), tokens))
    served = [0] * len(loads)
    gap = 0
    while all(waiting):
        item = await backlog.pop()
        assert item is not None
        tenant = int(item.tenant)
        served[tenant] += item.num_tokens
        waiting[tenant] -= 1
        gap = max(gap, max(served) - min(served))
    return gap


@given(loads=st.lists(TOKENS, min_size=2, max_size=4))
@settings(max_examples=200)
def test_waiting_tenants_are_served_evenly(loads: list[list[int]]) -> None:
    """Goyal et al., theorem 1, with equal weights: at most the two longest requests apart."""
    longest = sorted((max(load) for load in loads), reverse=True)
    backlog = MemoryBacklog(1000, ())
    assert asyncio.run(widest_gap(backlog, loads)) <= longest[0] + longest[1]


def test_order_of_arrival_breaks_the_bound() -> None:
    with pytest.raises(AssertionError):
        assert asyncio.run(widest_gap(ByArrival(1000, ()), [[10] * 20, [10] * 20])) <= 20


PROMPT_TOKENS = 10


@dataclass(frozen=True)
class Tenant:
    """Always has `num_waiting` requests in the backlog."""

    name: str
    num_waiting: int
    answers: tuple[int, int]
    """tokens, the fewest and the most"""
    expected: int | None = None
    """tokens of an answer; None: what it will be"""
    weight: int = 1

    @property
    def longest(self) -> int:
        """What one of its requests is charged at most, before debts."""
        most = self.answers[1] if self.expected is None else self.expected
        return by_weight(PROMPT_TOKENS + most, self.weight)

    @property
    def most_off(self) -> int:
        """By which what is expected can be wrong."""
        if self.expected is None:
            return 0
        off = max(abs(self.expected - each) for each in self.answers)
        return by_weight(off, self.weight) + 1

    def may_differ(self, num_at_once: int) -> int:
        """Its part of the bound: what is charged and not served yet, and corrections that wait
        until the requests before them are taken."""
        requests = (num_at_once + 1) * self.longest
        return requests + (self.num_waiting + num_at_once + 2) * self.most_off


class Served:
    """A backlog that workers empty, `num_at_once` requests at a time, which end in any order."""

    def __init__(self, backlog: MemoryBacklog, tenants: tuple[Tenant, Tenant], seed: int) -> None:
        self.tokens = dict.fromkeys((tenant.name for tenant in tenants), 0)
        """by weight, of requests that have ended"""
        self._backlog = backlog
        self._tenants = {tenant.name: tenant for tenant in tenants}
        self._numbers = random.Random(seed)  # noqa: S311
        self._lengths: dict[str, int] = {}
        self._running: list[BacklogEntry] = []

    async def run(self, num_at_once: int, num_ends: int) -> int:
        """The largest difference between what the two were served."""
        for tenant in self._tenants.values():
            for _ in range(tenant.num_waiting):
                await self._put(tenant)
        widest = 0
        for _ in range(num_ends):
            while len(self._running) < num_at_once:
                entry = await self._backlog.pop()
                assert entry is not None
                self._running.append(entry)
                await self._put(self._tenants[entry.tenant])
            self._end(self._running.pop(self._numbers.randrange(num_at_once)))
            first, second = self.tokens.values()
            widest = max(widest, abs(first - second))
        return widest

    async def _put(self, tenant: Tenant) -> None:
        rid = f"r{len(self._lengths)}"
        length = self._lengths[rid] = self._numbers.randint(*tenant.answers)
        expected = length if tenant.expected is None else tenant.expected
        entry = BacklogEntry(
            rid,
            "g",
            tenant.name,
            PROMPT_TOKENS,
            weight=tenant.weight,
            num_expected_tokens=expected,
        )
        assert (await self._backlog.put(entry)).status is PutStatus.QUEUED

    def _end(self, entry: BacklogEntry) -> None:
        served = by_weight(PROMPT_TOKENS + self._lengths[entry.rid], entry.weight)
        self.tokens[entry.tenant] += served
        self._backlog.settle(entry.priority, entry.tenant, served - entry.charge)


ANSWERS = st.tuples(st.integers(1, 30), st.integers(30, 300))


@given(
    tenants=st.tuples(
        st.builds(Tenant, st.just("many"), st.just(20), ANSWERS, weight=st.integers(1, 3)),
        st.builds(Tenant, st.just("few"), st.just(2), ANSWERS, weight=st.integers(1, 3)),
    ),
    num_at_once=st.integers(1, 8),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_what_workers_serve_at_once_is_shared_by_weight(
    tenants: tuple[Tenant, Tenant], num_at_once: int, seed: int
) -> None:
    """Jin et al.: at most D + 1 longest requests of each apart, where lengths are known."""
    served = Served(MemoryBacklog(100, ()), tenants, seed)
    widest = asyncio.run(served.run(num_at_once, num_ends=200))
    assert widest <= sum((num_at_once + 1) * tenant.longest for tenant in tenants)


UNLIKE = (
    Tenant("many", 20, answers=(200, 400), expected=30),
    Tenant("few", 2, answers=(5, 15), expected=30),
)
"""of whose answers the wrong length is expected"""


@given(
    lengths=st.tuples(ANSWERS, ANSWERS),
    expected=st.tuples(st.integers(0, 300), st.integers(0, 300)),
    num_at_once=st.integers(1, 8),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_answers_of_another_length_than_expected_change_that_by_what_is_on_its_way(
    lengths: tuple[tuple[int, int], tuple[int, int]],
    expected: tuple[int, int],
    num_at_once: int,
    seed: int,
) -> None:
    tenants = (
        Tenant("many", 20, lengths[0], expected[0]),
        Tenant("few", 2, lengths[1], expected[1]),
    )
    served = Served(MemoryBacklog(100, ()), tenants, seed)
    widest = asyncio.run(served.run(num_at_once, num_ends=300))
    assert widest <= sum(tenant.may_differ(num_at_once) for tenant in tenants)


class Unsettled(MemoryBacklog):
    """Mutant: a tenant is charged what was expected, whatever comes of it."""

    def settle(self, priority: int, tenant: str, owed: int) -> None:
        pass


@pytest.mark.parametrize(("backlog", "shared"), [(MemoryBacklog, True), (Unsettled, False)])
def test_without_settling_the_longer_answers_get_the_most(
    backlog: type[MemoryBacklog], *, shared: bool
) -> None:
    served = Served(backlog(100, ()), UNLIKE, seed=1)
    asyncio.run(served.run(num_at_once=8, num_ends=4000))
    share = served.tokens["few"] / sum(served.tokens.values())
    assert (abs(share - 0.5) < 0.05 * 0.5) is shared, share


async def _put(backlog: MemoryBacklog, rid: str, tenant: str) -> int:
    """How many go before it."""
    return (await backlog.put(BacklogEntry(rid, "g", tenant, 10))).num_ahead


def test_what_was_served_without_waiting_counts_for_those_that_wait() -> None:
    async def play() -> None:
        backlog = MemoryBacklog(100, ())
        await _put(backlog, "few.0", "few")
        backlog.settle(DEFAULT_PRIORITY, "many", 30)
        await _put(backlog, "many.0", "many")
        assert [await _put(backlog, f"few.{n}", "few") for n in (1, 2, 3, 4)] == [2, 3, 4, 5]
        assert await _put(backlog, "many.1", "many") == 6, "after 40 tokens of the other's"

    asyncio.run(play())


def test_what_was_served_while_nobody_waited_counts_no_more() -> None:
    async def play() -> None:
        backlog = MemoryBacklog(100, ())
        backlog.settle(DEFAULT_PRIORITY, "many", 1000)
        await _put(backlog, "many.0", "many")
        await _put(backlog, "many.1", "many")
        assert await _put(backlog, "few.0", "few") == 1

    asyncio.run(play())


def test_a_tenant_that_was_charged_too_much_keeps_the_order_of_its_requests() -> None:
    async def play() -> list[str]:
        backlog = MemoryBacklog(100, ())
        for n in range(4):
            await _put(backlog, f"r{n}", "t")
        backlog.settle(DEFAULT_PRIORITY, "t", -35)
        for n in range(4, 8):
            await _put(backlog, f"r{n}", "t")
        popped = [await backlog.pop() for _ in range(8)]
        return [entry.rid for entry in popped if entry is not None]

    assert asyncio.run(play()) == [f"r{n}" for n in range(8)]


def test_a_tenant_that_fills_the_backlog_leaves_others_their_places() -> None:
    async def play() -> None:
        backlog = MemoryBacklog(8, ("g",))
        statuses = [
            (await backlog.put(BacklogEntry(f"{tenant}.{n}", "g", tenant, 10))).status
            for tenant, number in (("many", 12), ("few", 8))
            for n in range(number)
        ]
        queued = [status is PutStatus.QUEUED for status in statuses]
        assert sum(queued[:12]) == 8
        assert sum(queued[12:]) == 4, "half of them"

    asyncio.run(play())


@pytest.mark.parametrize(
    ("priority", "tokens", "heads"), [(8, 1, ()), (-1, 1, ()), (0, 0, ()), (0, 1, (b"",) * 5)]
)
def test_impossible_entries_are_refused(
    priority: int, tokens: int, heads: tuple[bytes, ...]
) -> None:
    with pytest.raises(ValueError, match=r"priority|heads"):
        BacklogEntry("r", "g", "t", tokens, priority, heads)
