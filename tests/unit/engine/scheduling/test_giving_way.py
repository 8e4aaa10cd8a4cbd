"""Which sequence gives way: the latest class, then the cheapest to restore, never the oldest."""

from array import array
from collections.abc import Sequence as Listed
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from shared.engine.scheduling import giving_way
from shared.engine.scheduling.block_pool import BlockPool
from shared.engine.scheduling.sequence import MAX_PREEMPTIONS, Mode, Sequence, rank_of
from shared.protocol import DEFAULT_PRIORITY, Sampling
from tests.unit.engine.fake_runner import BLOCK_SIZE, make_prompt, make_spec

SETTINGS = settings(max_examples=300, phases=(Phase.generate,), database=None, derandomize=True)


def running_one(
    pool: BlockPool,
    arrival: int,
    num_computed: int,
    *,
    num_shared: int = 0,
    priority: int = DEFAULT_PRIORITY,
    mode: Mode = "full",
) -> Sequence:
    """A sequence whose first blocks another holds too; the test plants the references."""
    spec = make_spec(str(arrival), make_prompt(8, arrival), Sampling(9), mode, priority=priority)
    sequence = Sequence(spec, arrival)
    sequence.num_computed_tokens = num_computed
    blocks = pool.allocate(-(-max(num_computed, 1) // BLOCK_SIZE))
    sequence.block_table = array("i", blocks)
    for block in blocks[:num_shared]:
        pool.ref_counts[block] = 2
    return sequence


def new_pool() -> BlockPool:
    return BlockPool(400, BLOCK_SIZE, [0] * 400)


Facts = tuple[int, int, int, Mode, int, bool]


def lists(*priorities: int) -> st.SearchStrategy[list[Facts]]:
    """Of sequences of some of these priorities."""
    drawn = st.tuples(
        st.integers(0, 40),  # computed tokens
        st.integers(0, 5),  # shared blocks
        st.sampled_from(priorities),
        st.sampled_from(["full", "full", "full", "decode", "prefill"]),
        st.sampled_from([0, 0, 1, MAX_PREEMPTIONS]),
        st.sampled_from([False, False, False, True]),  # unverified
    )
    return st.lists(drawn, min_size=1, max_size=7)


def _made(facts: Listed[Facts], pool: BlockPool) -> list[Sequence]:
    running = []
    for arrival, (computed, shared, priority, mode, num_preemptions, unverified) in enumerate(
        facts
    ):
        one = running_one(pool, arrival, computed, num_shared=shared, priority=priority, mode=mode)
        one.num_preemptions = num_preemptions
        one.unverified = unverified and mode == "decode"
        running.append(one)
    return sorted(running, key=rank_of)


def _lost(sequence: Sequence, pool: BlockPool) -> int:
    """Token by token, by the definition."""
    here = sequence.spec.mode != "decode"
    kept = [pool.ref_counts[block] > 1 for block in sequence.block_table]
    return sum(
        not (here and kept[position // BLOCK_SIZE])
        for position in range(sequence.num_computed_tokens)
    )


def _gives(sequence: Sequence) -> bool:
    kept = sequence.num_preemptions >= MAX_PREEMPTIONS or sequence.unverified
    return not kept and sequence.spec.mode != "prefill"


@SETTINGS
@given(facts=lists(3) | lists(0, 3, 6), at=st.sampled_from([0, 0, *range(7)]))
def the_victim_is_right(facts: list[Facts], at: int) -> None:
    pool = new_pool()
    running = _made(facts, pool)
    asking = running[at % len(running)]
    asking.num_preemptions, asking.unverified = 0, False
    if asking.spec.mode == "prefill":
        return  # it never asks
    victim = giving_way.victim_of(asking, running, pool)
    behind = [one for one in running if rank_of(one) >= rank_of(asking) and _gives(one)]
    assert victim in behind, "it is scheduled already, or keeps what it has"
    if len(behind) > 1:
        behind = [one for one in behind if one is not running[0]]
        assert victim is not running[0], "the oldest"
    latest = max(one.work.priority for one in behind)
    assert victim.work.priority == latest, "one of a later class stays"
    behind = [one for one in behind if one.work.priority == latest]
    least = min(_lost(one, pool) for one in behind)
    assert _lost(victim, pool) == least, "another one is cheaper to restore"
    youngest = max(one.arrival for one in behind if _lost(one, pool) == least)
    assert victim.arrival == youngest, "of equally cheap ones an older one"


@SETTINGS
@given(facts=lists(6) | lists(3, 5, 6), places=st.integers(0, 2), lacking=st.integers(-2, 12))
def those_for_the_head_are_right(facts: list[Facts], places: int, lacking: int) -> None:
    pool = new_pool()
    running = _made(facts, pool)
    head = running_one(pool, 99, 0)
    found = giving_way.givers(head, running)
    right = [
        one
        for one in running
        if one.work.priority > DEFAULT_PRIORITY and one.spec.mode == "full" and _gives(one)
    ]
    assert sorted(found, key=rank_of) == right
    chosen = giving_way.enough_of(found, pool, places, lacking)
    gains = [len(one.block_table) + 1 for one in chosen]
    if places > 0 and lacking <= 0:
        assert not chosen, "nobody needs to"
    elif chosen:
        assert places + len(chosen) > 0 and sum(gains) >= lacking, "it is not enough"
        one_less = sum(gains[:-1]) < lacking or places + len(chosen) - 1 <= 0
        assert one_less, "one too many"
    else:
        assert places + len(found) <= 0 or sum(len(o.block_table) + 1 for o in found) < lacking
    left = [one for one in found if one not in chosen]
    keys = [(-one.work.priority, _lost(one, pool), -one.arrival) for one in chosen]
    assert all(earlier < later for earlier, later in pairwise(keys))
    if chosen and left:
        others = [(-one.work.priority, _lost(one, pool), -one.arrival) for one in left]
        assert max(keys) < min(others), "a cheaper one stays"


def test_of_the_latest_class_the_cheapest_to_restore_gives_way_and_never_the_oldest() -> None:
    the_victim_is_right()


def test_the_head_of_the_queue_takes_from_later_classes_the_cheapest_first() -> None:
    those_for_the_head_are_right()


Key = tuple[int, ...]


def _youngest(one: Sequence, pool: BlockPool) -> Key:
    return -one.work.priority, -one.arrival


def _oldest(one: Sequence, pool: BlockPool) -> Key:
    return -one.work.priority, giving_way.num_lost_tokens(one, pool), one.arrival


def _dearest(one: Sequence, pool: BlockPool) -> Key:
    return -one.work.priority, -giving_way.num_lost_tokens(one, pool), -one.arrival


def _cost_before_class(one: Sequence, pool: BlockPool) -> Key:
    return giving_way.num_lost_tokens(one, pool), -one.work.priority, -one.arrival


def _without_class(one: Sequence, pool: BlockPool) -> Key:
    return giving_way.num_lost_tokens(one, pool), -one.arrival


def _earliest_class(one: Sequence, pool: BlockPool) -> Key:
    return one.work.priority, giving_way.num_lost_tokens(one, pool), -one.arrival


def _without_cache(one: Sequence, pool: BlockPool) -> int:
    return one.num_computed_tokens


def _own_blocks(one: Sequence, pool: BlockPool) -> int:
    return sum(pool.ref_counts[block] < 2 for block in one.block_table)


def _elsewhere_too(one: Sequence, pool: BlockPool) -> int:
    shared = sum(pool.ref_counts[block] > 1 for block in one.block_table)
    return max(0, one.num_computed_tokens - shared * pool.block_size)


def _anyone(sequence: Sequence) -> bool:
    return not sequence.pinned


def _often(sequence: Sequence) -> bool:
    return not sequence.unverified and sequence.spec.mode != "prefill"


def _unverified(sequence: Sequence) -> bool:
    return not sequence.pinned and sequence.spec.mode != "prefill"


def _of_all(asking: Sequence, running: Listed[Sequence], pool: BlockPool) -> Sequence:
    found = [one for one in running[1:] if _gives(one)] or [asking]
    return min(found, key=lambda one: giving_way.giving_order(one, pool))


def _oldest_too(asking: Sequence, running: Listed[Sequence], pool: BlockPool) -> Sequence:
    found = [one for one in running[running.index(asking) :] if _gives(one)]
    return min(found, key=lambda one: giving_way.giving_order(one, pool))


def _never_itself(asking: Sequence, running: Listed[Sequence], pool: BlockPool) -> Sequence:
    found = [one for one in running[running.index(asking) + 1 :] if _gives(one)] or [asking]
    return min(found, key=lambda one: giving_way.giving_order(one, pool))


ORDERS = _youngest, _oldest, _dearest, _cost_before_class, _without_class, _earliest_class
COSTS = _without_cache, _own_blocks, _elsewhere_too
CANDIDATES = _anyone, _often, _unverified
CHOICES = _of_all, _oldest_too, _never_itself
MUTANTS = [
    *(("giving_order", mutant) for mutant in ORDERS),
    *(("num_lost_tokens", mutant) for mutant in COSTS),
    *(("_may_give", mutant) for mutant in CANDIDATES),
    *(("victim_of", mutant) for mutant in CHOICES),
]


@pytest.mark.parametrize(("name", "mutant"), MUTANTS)
def test_each_planted_order_is_found(
    monkeypatch: pytest.MonkeyPatch, name: str, mutant: object
) -> None:
    monkeypatch.setattr(giving_way, name, mutant)
    with pytest.raises((AssertionError, ExceptionGroup)):
        the_victim_is_right()


@pytest.mark.parametrize(
    ("name", "mutant"),
    [
        *(("giving_order", mutant) for mutant in (_youngest, _oldest, _dearest, _earliest_class)),
        ("num_lost_tokens", _without_cache),
    ],
)
def test_each_order_planted_for_the_head_is_found(
    monkeypatch: pytest.MonkeyPatch, name: str, mutant: object
) -> None:
    monkeypatch.setattr(giving_way, name, mutant)
    with pytest.raises((AssertionError, ExceptionGroup)):
        those_for_the_head_are_right()


def test_a_prompt_that_is_computed_for_its_log_probabilities_is_computed_whole() -> None:
    """It reads nothing of the cache, so what others hold makes it no cheaper."""
    pool = new_pool()
    plain = running_one(pool, 0, 20, num_shared=3)
    assert giving_way.num_lost_tokens(plain, pool) == 8
    scored = running_one(pool, 1, 20, num_shared=3)
    scored.work = replace(scored.work, prompt_logprobs=0)
    assert giving_way.num_lost_tokens(scored, pool) == 20
    scored.num_scored_tokens = scored.work.num_prompt_tokens
    assert giving_way.num_lost_tokens(scored, pool) == 8
