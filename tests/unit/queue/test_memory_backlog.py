"""Start-time fair queuing: the fairness bound of its paper, on the twin of the Lua."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.queue.backlog import Backlog, BacklogEntry
from shared.queue.memory_backlog import MemoryBacklog

TOKENS = st.lists(st.integers(1, 40), min_size=1, max_size=20)


class ByArrival(MemoryBacklog):
    """Mutant: first come, first served."""

    def _start_tag(self, entry: BacklogEntry) -> int:
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


@pytest.mark.parametrize(
    ("priority", "tokens", "heads"), [(8, 1, ()), (-1, 1, ()), (0, 0, ()), (0, 1, (b"",) * 5)]
)
def test_impossible_entries_are_refused(
    priority: int, tokens: int, heads: tuple[bytes, ...]
) -> None:
    with pytest.raises(ValueError, match=r"priority|heads"):
        BacklogEntry("r", "g", "t", tokens, priority, heads)
