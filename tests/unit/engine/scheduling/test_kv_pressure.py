"""The three policies where KV blocks run short: what an admission takes, and what is refused."""

from collections.abc import Callable
from collections.abc import Sequence as Listed
from dataclasses import fields, replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from shared.engine.scheduling import kv_pressure
from shared.engine.scheduling.admission import check_room
from shared.engine.scheduling.block_pool import BlockPool
from shared.engine.scheduling.block_table import cached_blocks, commit_blocks
from shared.engine.scheduling.scheduled_batch import ScheduledBatch
from shared.engine.scheduling.scheduler import Scheduler
from shared.engine.scheduling.sequence import Mode, Sequence, SequenceState, max_blocks
from shared.errors import OutOfBlocksError
from shared.protocol import DEFAULT_PRIORITY, Sampling, Work
from shared.settings.groups import KVPressure
from tests.unit.engine.fake_runner import BLOCK_SIZE, fake_engine, make_prompt, make_spec

BULK = DEFAULT_PRIORITY + 3
MAX_MODEL_LEN = 64
SETTINGS = settings(max_examples=400, phases=(Phase.generate,), database=None, derandomize=True)


class Bench:
    """A scheduler, and steps that are pretended to run."""

    def __init__(self, policy: KVPressure, num_blocks: int, *, max_num_seqs: int = 4) -> None:
        self.scheduler = Scheduler(
            BlockPool(num_blocks, BLOCK_SIZE, [0] * num_blocks),
            max_num_batched_tokens=24,
            max_num_seqs=max_num_seqs,
            max_model_len=MAX_MODEL_LEN,
            on_kv_pressure=policy,
        )
        self.known: list[Sequence] = []
        self.preempted: list[Sequence] = []
        self._num_arrived = 0

    def add(
        self,
        tokens: tuple[int, ...],
        max_tokens: int,
        mode: Mode = "full",
        *,
        priority: int = DEFAULT_PRIORITY,
    ) -> Sequence | None:
        """None if it was refused."""
        sampling = Sampling(max_tokens=max_tokens, ignore_eos=True)
        spec = make_spec(str(self._num_arrived), tokens, sampling, mode, priority=priority)
        sequence = Sequence(spec, self._num_arrived)
        self._num_arrived += 1
        try:
            check_room(sequence, self.known, self.scheduler)
        except OutOfBlocksError:
            return None
        self.known.append(sequence)
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> list[Sequence]:
        """Those that ended."""
        ended = []
        batch = self.scheduler.schedule()
        self.preempted += batch.preempted
        for sequence, start, num_tokens, samples, _ in batch.items:
            sequence.num_computed_tokens = start + num_tokens
            commit_blocks(self.scheduler.pool, sequence)
            if samples:
                sequence.append(sequence.arrival % 7)
                sequence.state = SequenceState.DECODE
                if sequence.finish_reason(MAX_MODEL_LEN) is not None:
                    ended.append(sequence)
        self.scheduler.release_sources(batch)
        for sequence in ended:
            self.scheduler.remove(sequence)
            self.known.remove(sequence)
        return ended


@pytest.mark.parametrize(("policy", "num_blocks"), [("preempt", 2), ("queue", 4), ("reject", 4)])
def test_an_admission_takes_known_tokens_or_all_that_can_come(
    policy: KVPressure, num_blocks: int
) -> None:
    """Of 8 tokens and 9 more, the last of which is never fed back."""
    bench = Bench(policy, 12)
    sequence = bench.add(make_prompt(8), 9)
    bench.step()
    assert sequence is not None
    assert len(sequence.block_table) == num_blocks
    assert sequence.whole == (policy != "preempt")


def test_a_reservation_takes_all_that_can_come_and_is_told_only_of_its_prompt() -> None:
    engine, _ = fake_engine(12)
    engine._scheduler.on_kv_pressure = "queue"
    spec = make_spec("a", make_prompt(6), Sampling(max_tokens=11, temperature=0.0), "decode")
    engine.reserve(spec)
    [(attempt, block_ids, _)] = engine.step().reserved
    assert attempt == spec.work.attempt
    table = engine.sequences[attempt].block_table
    assert len(table) == 4
    assert block_ids == tuple(table[:2])


def test_queue_lets_the_head_wait_and_preempts_no_equal() -> None:
    bench = Bench("queue", 6)
    first, second = bench.add(make_prompt(8), 9), bench.add(make_prompt(8, 1), 5)
    assert first is not None and second is not None
    for _ in range(9):
        assert second.state is SequenceState.WAITING
        bench.step()
    assert first.state is SequenceState.FINISHED
    bench.step()
    assert second.whole
    assert not bench.preempted


def test_reject_takes_what_finds_blocks_besides_those_that_wait_for_a_place() -> None:
    bench = Bench("reject", 8, max_num_seqs=1)
    assert bench.add(make_prompt(8), 5) is not None  # 3 blocks
    bench.step()
    assert bench.add(make_prompt(8, 1), 5) is not None  # waits for a place, not for blocks
    assert bench.add(make_prompt(8, 2), 5) is None  # 2 are left
    assert bench.add(make_prompt(4, 3), 5) is not None


@pytest.mark.parametrize("why", ["delivered", "accepted", "decode"])
def test_what_was_taken_once_is_not_refused(why: str) -> None:
    engine, _ = fake_engine(4)
    engine._scheduler.on_kv_pressure = "reject"
    engine.add(make_spec("a", make_prompt(8), Sampling(max_tokens=9), "full"))
    with pytest.raises(OutOfBlocksError, match="need 3 KV blocks"):
        engine.add(make_spec("b", make_prompt(8, 1), Sampling(max_tokens=5), "full"))
    sampling = Sampling(max_tokens=5, temperature=0.0)
    num_prompt = 7 if why == "delivered" else 8
    mode: Mode = "decode" if why == "decode" else "full"
    spec = make_spec("c", make_prompt(8, 1), sampling, mode, num_prompt_tokens=num_prompt)
    spec = replace(spec, work=replace(spec.work, accepted=why == "accepted"))
    assert engine.reserve(spec) if mode == "decode" else engine.add(spec)


def test_what_a_gateway_of_an_earlier_release_sends_is_not_refused() -> None:
    """It would send it again and again, until it gives up."""
    spec = make_spec("a", make_prompt(8), Sampling(max_tokens=5))
    work = Work(*(getattr(spec.work, field.name) for field in fields(Work)[:5]))
    assert kv_pressure.may_be_refused("reject", Sequence(spec, 0))
    assert not kv_pressure.may_be_refused("reject", Sequence(replace(spec, work=work), 0))


@pytest.mark.parametrize("policy", ["queue", "reject"])
def test_an_earlier_class_takes_blocks_and_what_gives_them_waits(policy: KVPressure) -> None:
    bench = Bench(policy, 4)
    bulk = bench.add(make_prompt(8), 9, priority=BULK)
    bench.step()
    asks = bench.add(make_prompt(8, 1), 5)
    assert bulk is not None and asks is not None
    bench.step()
    assert bench.preempted == [bulk]
    assert asks.state is SequenceState.DECODE
    assert bulk.state is SequenceState.WAITING
    while bench.known:
        bench.step()
    assert len(bulk.token_ids) == 8 + 9
    assert bulk.num_preemptions == 1


def test_blocks_that_others_hold_are_not_counted_twice() -> None:
    """Of the same prompt one block of three is shared: the last token is computed again, in a block
    of its own. Of a longer one two are."""
    bench = Bench("reject", 5)
    assert bench.add(make_prompt(8), 9) is not None
    bench.step()
    assert bench.add(make_prompt(8), 5) is None
    assert bench.add((*make_prompt(8), 1), 4) is not None


def test_what_a_queued_prompt_takes_follows_what_others_hold() -> None:
    """A block of its prefix is there, then held, then held by nobody."""
    bench = Bench("reject", 12, max_num_seqs=1)
    pool = bench.scheduler.pool
    first, second = bench.add(make_prompt(8), 2), bench.add(make_prompt(8), 5)
    assert first is not None and second is not None
    drawn = []
    for step in (lambda: None, bench.step, bench.step):
        step()
        drawn.append(kv_pressure._num_drawn(second, pool, MAX_MODEL_LEN))
    assert first.state is SequenceState.FINISHED
    assert drawn == [3, 2, 3]


def test_of_prompts_that_arrive_between_two_steps_each_is_looked_up_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_up = []

    def counted(pool: BlockPool, sequence: Sequence) -> list[int]:
        looked_up.append(sequence.arrival)
        return cached_blocks(pool, sequence)

    monkeypatch.setattr(kv_pressure, "cached_blocks", counted)
    bench = Bench("reject", 400)
    for number in range(100):
        assert bench.add(make_prompt(8, number), 5) is not None
    assert looked_up == list(range(100))


@pytest.mark.parametrize(("policy", "is_taken"), [("queue", True), ("reject", False)])
def test_what_prefill_holds_for_its_reader_is_waited_for(
    policy: KVPressure, *, is_taken: bool
) -> None:
    """Nobody knows for how long: decode reads it once it has blocks itself. A prompt that may wait
    does wait, so one that may not is refused."""
    bench = Bench(policy, 3)
    held = bench.add(make_prompt(8), 9, "prefill")
    assert held is not None
    bench.step()
    bench.scheduler.park(held)
    held.state = SequenceState.HELD
    second = bench.add(make_prompt(8, 1), 9, "prefill")
    assert (second is not None) is is_taken
    for _ in range(20):
        bench.step()
        assert second is None or second.state is SequenceState.WAITING
    bench.scheduler.remove(held)
    bench.known.remove(held)
    if second is None:
        assert bench.add(make_prompt(8, 1), 9, "prefill") is not None
    else:
        bench.step()
        assert second.block_table


Life = tuple[int, int, int, int]
lives = st.lists(
    st.tuples(
        st.integers(0, 1),  # trunk
        st.sampled_from([8, 8, 8, 12, *range(1, 13)]),  # tokens of the prompt
        st.integers(1, 8),  # of the answer
        st.integers(0, 3),  # steps until the next one comes
    ),
    min_size=2,
    max_size=14,
)


@SETTINGS
@given(lives=lives, num_blocks=st.integers(5, 10), max_num_seqs=st.integers(1, 4))
def what_is_taken_never_waits_for_blocks(
    lives: list[Life], num_blocks: int, max_num_seqs: int
) -> None:
    """Of one class. Whatever finds a place and is reached by a step finds the blocks too; but for
    the step that copies a block, which holds the source besides."""
    bench = Bench("reject", num_blocks, max_num_seqs=max_num_seqs)
    num_refused, taken = 0, 0
    take = Scheduler._take_blocks

    def noted(self: Scheduler, sequence: Sequence, batch: ScheduledBatch) -> bool:
        found = take(self, sequence, batch)
        assert found or batch.copies, "it waits for blocks"
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scheduler, "_take_blocks", noted)
        for trunk, num_prompt, num_answer, pause in lives:
            available = bench.scheduler.pool.num_available
            queued = [one for one in bench.known if one.state is SequenceState.WAITING]
            sequence = bench.add((trunk,) * num_prompt, num_answer)
            taken += sequence is not None
            if sequence is None:
                num_refused += 1
                most = sum(max_blocks(one.spec, MAX_MODEL_LEN, BLOCK_SIZE) for one in queued)
                own = -(-(num_prompt + num_answer - 1) // BLOCK_SIZE)
                assert most + max(own, -(-num_prompt // BLOCK_SIZE)) > available, "it would fit"
            for _ in range(pause):
                bench.step()
        for _ in range(1000):
            if not bench.known:
                break
            bench.step()
    assert not bench.known and not bench.preempted
    assert taken + num_refused == len(lives)


def test_what_reject_takes_never_waits_for_blocks() -> None:
    what_is_taken_never_waits_for_blocks()


def _forgets_the_queue(
    sequence: Sequence, queued: object, running: Listed[Sequence], pool: BlockPool, limit: int
) -> bool:
    return _WOULD_WAIT(sequence, [], running, pool, limit)


def _known_tokens_only(sequence: Sequence, pool: BlockPool, limit: int) -> int:
    return -(-len(sequence.token_ids) // pool.block_size)


def _whatever_is_cached(sequence: Sequence, pool: BlockPool, limit: int) -> int:
    cached = len(pool.match(sequence.block_hashes))
    return max_blocks(sequence.spec, limit, pool.block_size) - cached


def _last_block_too(sequence: Sequence, pool: BlockPool, limit: int) -> int:
    shared = sum(pool.ref_counts[block] > 0 for block in pool.match(sequence.block_hashes))
    return max_blocks(sequence.spec, limit, pool.block_size) - shared


def _one_more(sequence: Sequence, pool: BlockPool, limit: int) -> int:
    return max_blocks(sequence.spec, limit, pool.block_size) + 1


def _nobody_waits(*_: object) -> bool:
    return False


_WOULD_WAIT = kv_pressure.would_wait
Mutant = Callable[..., object]


@pytest.mark.parametrize(
    ("name", "mutant"),
    [
        ("admission.would_wait", _forgets_the_queue),
        ("admission.would_wait", _nobody_waits),
        ("kv_pressure._num_drawn", _known_tokens_only),
        ("kv_pressure._num_drawn", _whatever_is_cached),
        ("kv_pressure._num_drawn", _last_block_too),
        ("kv_pressure._num_drawn", _one_more),
    ],
)
def test_each_wrong_count_is_found(
    monkeypatch: pytest.MonkeyPatch, name: str, mutant: Mutant
) -> None:
    monkeypatch.setattr(f"shared.engine.scheduling.{name}", mutant)
    with pytest.raises((AssertionError, ExceptionGroup)):
        what_is_taken_never_waits_for_blocks()
