"""Scheduling decisions alone: order, places, budget, and which sequence gives way."""

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shared.engine.scheduling.block_pool import BlockPool
from shared.engine.scheduling.block_table import commit_blocks
from shared.engine.scheduling.prompt_order import PATIENCE, PromptOrder
from shared.engine.scheduling.scheduled_batch import ScheduledBatch
from shared.engine.scheduling.scheduler import Scheduler
from shared.engine.scheduling.sequence import MAX_PREEMPTIONS, Mode, Sequence, SequenceState
from shared.errors import SettingsError
from shared.protocol import DEFAULT_PRIORITY, Sampling
from tests.unit.engine.fake_runner import BLOCK_SIZE, make_spec


def make_scheduler(num_blocks: int = 16, budget: int = 16, max_num_seqs: int = 4) -> Scheduler:
    return Scheduler(
        BlockPool(num_blocks, BLOCK_SIZE, [0] * num_blocks),
        max_num_batched_tokens=budget,
        max_num_seqs=max_num_seqs,
        max_model_len=64,
    )


def add(
    scheduler: Scheduler,
    arrival: int,
    length: int,
    mode: Mode = "full",
    priority: int = DEFAULT_PRIORITY,
) -> Sequence:
    tokens = tuple(arrival * 100 + index for index in range(length))
    spec = make_spec(str(arrival), tokens, Sampling(max_tokens=30), mode, priority=priority)
    sequence = Sequence(spec, arrival)
    scheduler.add(sequence)
    return sequence


def run(scheduler: Scheduler) -> ScheduledBatch:
    """Schedule, and pretend the step ran and sampled."""
    batch = scheduler.schedule()
    for item in batch.items:
        item.sequence.num_computed_tokens += item.num_tokens
        if item.samples:
            item.sequence.token_ids.append(1)
            item.sequence.state = SequenceState.DECODE
    scheduler.release_sources(batch)
    return batch


def scheduled(batch: ScheduledBatch) -> list[tuple[int, int]]:
    return [(item.sequence.arrival, item.num_tokens) for item in batch.items]


def test_a_budget_too_small_for_one_block_beside_the_decodes_stops_the_start() -> None:
    with pytest.raises(SettingsError, match="max_num_batched_tokens"):
        make_scheduler(budget=6, max_num_seqs=4)
    make_scheduler(budget=7, max_num_seqs=4)


def test_prompts_share_a_step_in_order_of_arrival() -> None:
    scheduler = make_scheduler()
    for arrival, length in enumerate((5, 9, 9)):
        add(scheduler, arrival, length)
    assert scheduled(run(scheduler)) == [(0, 5), (1, 9)]
    assert scheduled(run(scheduler)) == [(0, 1), (1, 1), (2, 9)]


def test_a_chunk_keeps_the_last_tokens_for_a_block_border() -> None:
    scheduler = make_scheduler(budget=14)
    add(scheduler, 0, 5)
    add(scheduler, 1, 14)
    assert scheduled(run(scheduler)) == [(0, 5), (1, 8)]
    assert scheduled(run(scheduler)) == [(0, 1), (1, 6)]


def test_a_prefill_takes_all_its_blocks_before_its_first_chunk() -> None:
    scheduler = make_scheduler(num_blocks=8, budget=8)
    first = add(scheduler, 0, 24, "prefill")
    second = add(scheduler, 1, 12, "prefill")
    run(scheduler)
    assert len(first.block_table) == 6
    assert second.state is SequenceState.WAITING and not second.block_table


def test_a_short_prompt_goes_before_what_is_left_of_a_long_one() -> None:
    scheduler = make_scheduler(num_blocks=32, budget=8)
    add(scheduler, 0, 40)
    assert scheduled(run(scheduler)) == [(0, 8)]
    short = add(scheduler, 1, 4, "prefill")
    assert scheduled(run(scheduler)) == [(1, 4)], "a light step"
    short.state = SequenceState.HELD
    another = add(scheduler, 2, 4, "prefill")
    assert scheduled(run(scheduler)) == [(2, 4), (0, 4)], "but not two of them in a row"
    another.state = SequenceState.HELD
    assert scheduled(run(scheduler)) == [(0, 8)]


def test_a_long_prompt_in_the_queue_keeps_its_turn_for_blocks() -> None:
    scheduler = make_scheduler(num_blocks=32, budget=8)
    for arrival, length in enumerate((40, 30, 4)):
        add(scheduler, arrival, length, "prefill")
    assert scheduled(run(scheduler)) == [(2, 4)]
    assert [sequence.arrival for sequence in scheduler.running] == [0, 1, 2]


def test_a_prompt_is_as_long_as_what_no_block_holds() -> None:
    scheduler = make_scheduler(num_blocks=32, budget=8)
    [first] = [add(scheduler, 0, 20, "prefill")]
    for _ in range(3):
        run(scheduler)
        commit_blocks(scheduler.pool, first)
    first.state = SequenceState.HELD
    add(scheduler, 1, 40, "prefill")
    run(scheduler)
    tokens = (*first.work.token_ids, 1, 2)
    spec = make_spec("again", tokens, Sampling(max_tokens=30), "prefill")
    scheduler.add(Sequence(spec, 2))
    assert scheduled(run(scheduler))[0] == (2, 2)


@given(
    lengths=st.lists(st.one_of(st.integers(1, 8), st.integers(9, 60)), min_size=2, max_size=40),
    steps_between=st.integers(0, 3),
)
@example([9, 33, 1, 1, 1, 1, 1, 1, 9, 17, 32, 32, 32], 0)  # the second is overdue first
def test_a_long_prompt_is_overtaken_by_so_many_tokens_at_most(
    lengths: list[int], steps_between: int
) -> None:
    """Prompts of one step by none; and each ends."""
    budget = 8
    scheduler = make_scheduler(num_blocks=1000, budget=budget, max_num_seqs=5)
    order: list[int] = []

    def step() -> None:
        for item in run(scheduler).items:
            if item.samples:
                order.append(item.sequence.arrival)
                scheduler.remove(item.sequence)

    for arrival, length in enumerate(lengths):
        add(scheduler, arrival, length, "prefill")
        for _ in range(steps_between):
            step()
    for _ in range(sum(lengths)):
        step()
    assert sorted(order) == list(range(len(lengths)))
    for place, arrival in enumerate(order):
        overtook = sum(lengths[other] for other in order[:place] if other > arrival)
        whole_steps = (lengths[arrival] - 1) // budget * budget
        assert overtook <= PATIENCE * whole_steps


def test_a_step_that_admits_a_long_queue_looks_at_each_prompt_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0
    place = PromptOrder.place

    def counted(self: PromptOrder, sequence: Sequence) -> tuple[int, int, int]:
        nonlocal looks
        looks += 1
        return place(self, sequence)

    monkeypatch.setattr(PromptOrder, "place", counted)
    num_prompts = 400
    scheduler = make_scheduler(num_blocks=num_prompts, budget=4 * num_prompts, max_num_seqs=400)
    for arrival in range(num_prompts):
        add(scheduler, arrival, 4, "prefill")
    assert len(scheduled(run(scheduler))) == num_prompts
    assert looks <= 5 * num_prompts


def test_nobody_overtakes_the_head_of_the_queue() -> None:
    scheduler = make_scheduler(num_blocks=8)
    add(scheduler, 0, 16, "prefill")
    add(scheduler, 1, 20, "decode")
    small = add(scheduler, 2, 2, "decode")
    run(scheduler)
    assert small.state is SequenceState.WAITING


def test_reserved_sequences_take_places() -> None:
    scheduler = make_scheduler(max_num_seqs=2)
    reserved = [add(scheduler, arrival, 4, "decode") for arrival in range(3)]
    assert run(scheduler).reserved == reserved[:2]
    scheduler.remove(reserved[0])
    assert run(scheduler).reserved == reserved[2:]


def fill(scheduler: Scheduler, modes: list[Mode]) -> list[Sequence]:
    sequences = [add(scheduler, arrival, 7, mode) for arrival, mode in enumerate(modes)]
    run(scheduler)
    for sequence in sequences:
        if sequence.spec.mode == "decode":
            sequence.num_computed_tokens = 7
            sequence.token_ids.append(1)
            sequence.state = SequenceState.VERIFIED
            scheduler.adopt(sequence)
    return sequences


def test_the_youngest_gives_way_and_starts_over_at_the_head() -> None:
    scheduler = make_scheduler(num_blocks=7, budget=32)
    old, young = fill(scheduler, ["full", "full"])
    late = add(scheduler, 9, 30)
    for _ in range(30):
        batch = run(scheduler)
        if batch.preempted:
            break
    assert batch.preempted == [young]
    assert [item.sequence for item in batch.items] == [old]
    assert list(scheduler.waiting) == [young, late]
    assert young.num_computed_tokens == 0 and not young.block_table


def test_a_prefill_is_never_preempted_for_a_decode() -> None:
    scheduler = make_scheduler(num_blocks=7, budget=8)
    decode = add(scheduler, 0, 8)
    run(scheduler)
    prefill = add(scheduler, 1, 12, "prefill")
    preempted = []
    for _ in range(12):
        batch = scheduler.schedule()
        for item in batch.items:
            if item.sequence is decode:
                item.sequence.num_computed_tokens += 1
                item.sequence.token_ids.append(1)
        preempted += batch.preempted
        if preempted:
            break
    assert preempted == [decode]
    assert prefill.state is SequenceState.WRITING


BULK, URGENT = 6, 1


def test_prompts_go_by_priority_then_by_arrival() -> None:
    scheduler = make_scheduler(num_blocks=64, budget=8)
    add(scheduler, 0, 24, "prefill", BULK)
    add(scheduler, 1, 8, "prefill", BULK)
    add(scheduler, 2, 16, "prefill", URGENT)
    add(scheduler, 3, 8, "prefill")
    order: list[int] = []
    for _ in range(7):
        batch = run(scheduler)
        order += [item.sequence.arrival for item in batch.items]
        for item in batch.items:
            if item.samples:
                scheduler.remove(item.sequence)
    assert order == [2, 2, 3, 1, 0, 0, 0]


def test_a_prompt_in_progress_waits_for_one_of_an_earlier_priority_no_longer_than_its_chunk() -> (
    None
):
    scheduler = make_scheduler(num_blocks=64, budget=8)
    add(scheduler, 0, 40, "prefill", BULK)
    assert scheduled(run(scheduler)) == [(0, 8)]
    add(scheduler, 1, 8, "prefill")
    assert scheduled(run(scheduler)) == [(1, 8)]


def test_reservations_go_by_priority() -> None:
    scheduler = make_scheduler(num_blocks=4)
    add(scheduler, 0, 12, "decode")
    add(scheduler, 1, 8, "decode", BULK)
    add(scheduler, 2, 8, "decode")
    first = run(scheduler).reserved
    assert [sequence.arrival for sequence in first] == [0]
    scheduler.remove(first[0])
    assert [sequence.arrival for sequence in run(scheduler).reserved] == [2]


def test_of_a_later_priority_the_youngest_gives_way_however_old_the_others() -> None:
    """The one that asks for a block is the youngest of all."""
    scheduler = make_scheduler(num_blocks=9, budget=32)
    bulks = [add(scheduler, arrival, 7, "full", BULK) for arrival in (0, 1)]
    asks = add(scheduler, 2, 7)
    run(scheduler)
    for _ in range(30):
        batch = run(scheduler)
        if batch.preempted:
            break
    assert batch.preempted == [bulks[1]]
    assert batch.items[0].sequence is asks


def _filled_with_bulk(num_blocks: int, max_num_seqs: int) -> Scheduler:
    scheduler = make_scheduler(num_blocks, budget=32, max_num_seqs=max_num_seqs)
    for arrival in range(3):
        add(scheduler, arrival, 7, "full", BULK)
    run(scheduler)
    assert len(scheduler.running) == 3
    return scheduler


@pytest.mark.parametrize(("num_blocks", "max_num_seqs"), [(64, 3), (10, 4)])
def test_who_finds_no_place_or_no_blocks_gets_those_of_a_later_priority(
    num_blocks: int, max_num_seqs: int
) -> None:
    scheduler = _filled_with_bulk(num_blocks, max_num_seqs)
    asks = add(scheduler, 3, 8)
    assert scheduler.must_preempt
    batch = run(scheduler)
    assert [sequence.arrival for sequence in batch.preempted] == [2]
    assert asks in scheduler.running
    assert not scheduler.must_preempt


@pytest.mark.parametrize(
    "why", ["same priority", "keeps its blocks", "not enough", "from elsewhere"]
)
def test_nobody_gives_way(why: str) -> None:
    scheduler = _filled_with_bulk(11, 3)
    for sequence in scheduler.running:
        sequence.num_preemptions = MAX_PREEMPTIONS * (why == "keeps its blocks")
        if why == "from elsewhere":
            sequence.spec = replace(sequence.spec, mode="decode")
    length, priority = (60 if why == "not enough" else 8), (BULK if why == "same priority" else 3)
    add(scheduler, 3, length, "full", priority)
    assert not scheduler.must_preempt
    assert not run(scheduler).preempted
