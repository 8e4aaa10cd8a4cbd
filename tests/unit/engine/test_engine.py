"""The engine's contract: the tokens of an undisturbed run, whatever happens around a sequence."""

from dataclasses import replace
from itertools import chain

import pytest

from shared.engine import engine as engine_module
from shared.engine.engine import Engine
from shared.engine.handover import adoptions
from shared.engine.scheduling import block_pool
from shared.engine.scheduling.load import EngineLoad
from shared.engine.scheduling.sequence import MAX_PREEMPTIONS
from shared.errors import RequestError
from shared.message_parts.step_costs import NO_COSTS
from shared.protocol import DEFAULT_PRIORITY, Attempt, Sampling, TokenRun
from tests.support.oracles.engine_integrity import check_engine
from tests.unit.engine.fake_runner import (
    answer_alone,
    fake_engine,
    make_prompt,
    make_spec,
    run_to_end,
    tokens_of,
)

GREEDY = Sampling(max_tokens=6, temperature=0.0)


@pytest.mark.parametrize("length", [1, 3, 4, 5, 15, 16, 17, 40])
def test_a_prompt_of_any_length_gives_the_tokens_of_the_definition(length: int) -> None:
    engine, _ = fake_engine(32)
    spec = make_spec("a", make_prompt(length), GREEDY)
    engine.add(spec)
    outputs = run_to_end(engine)
    assert tokens_of(outputs, spec.work.attempt) == answer_alone(
        spec.work.token_ids, length, GREEDY, 64
    )
    assert outputs[0].started == [(spec.work.attempt, 0)]
    assert [run.finish_reason for output in outputs for run in output.tokens][-1] == "length"
    assert [attempt for output in outputs for attempt in output.finished] == [spec.work.attempt]
    load = engine.load()
    assert load.held == 0 and load.free + load.cached == load.total


def test_chunks_end_on_block_borders_except_the_last() -> None:
    engine, runner = fake_engine(32, budget=10)
    engine.add(make_spec("a", make_prompt(27), GREEDY))
    ends = []
    while engine.has_work:
        engine.step()
        ends += runner.chunk_ends
    assert ends == [8, 16, 24, 27]


def test_decoding_sequences_go_first_and_share_the_budget() -> None:
    engine, runner = fake_engine(32, budget=8)
    engine.add(make_spec("a", make_prompt(4), Sampling(max_tokens=8, temperature=0.0)))
    engine.step()
    engine.add(make_spec("b", make_prompt(20, 1), GREEDY))
    output = engine.step()
    assert [run.rid for run in output.tokens] == ["a"]
    assert output.chunks == [(Attempt("b", 0), 4)]
    assert runner.max_tokens_fed <= 8


def test_a_second_turn_finds_generated_blocks_in_the_prefix_cache() -> None:
    engine, _ = fake_engine(32)
    first = make_spec("a", make_prompt(6), Sampling(max_tokens=8, temperature=0.0))
    engine.add(first)
    answer = tokens_of(run_to_end(engine), first.work.attempt)
    second = make_spec("b", (*first.work.token_ids, *answer, 1, 2), GREEDY)
    engine.add(second)
    outputs = run_to_end(engine)
    assert outputs[0].started == [(second.work.attempt, 12)]
    assert tokens_of(outputs, second.work.attempt) == answer_alone(
        second.work.token_ids, 16, GREEDY, 64
    )
    assert (engine.counters.prefix_query_tokens, engine.counters.prefix_hit_tokens) == (22, 12)


@pytest.mark.parametrize(("priority", "num_kept"), [(DEFAULT_PRIORITY, 0), (6, 12)])
def test_bulk_work_leaves_the_prefixes_of_others(priority: int, num_kept: int) -> None:
    """What each of four documents of 40 tokens leaves would take the pool's other 28 blocks."""
    engine, _ = fake_engine(32)
    engine.add(make_spec("chat", make_prompt(15), GREEDY))
    run_to_end(engine)
    for number in range(4):
        prompt = make_prompt(40, salt=number + 1)
        engine.add(make_spec(f"document {number}", prompt, GREEDY, priority=priority))
        run_to_end(engine)
    engine.add(make_spec("chat again", make_prompt(15), GREEDY))
    assert run_to_end(engine)[0].started == [(Attempt("chat again", 0), num_kept)]


def test_a_wholly_cached_prompt_copies_its_last_block_and_computes_one_token() -> None:
    engine, runner = fake_engine(32)
    engine.add(make_spec("a", make_prompt(16), GREEDY))
    run_to_end(engine)
    fed = runner.num_tokens_fed
    spec = make_spec("b", make_prompt(16), GREEDY)
    engine.add(spec)
    outputs = run_to_end(engine)
    assert outputs[0].started == [(spec.work.attempt, 15)]
    assert outputs[0].chunks == [(spec.work.attempt, 1)]
    assert runner.num_tokens_fed - fed == GREEDY.max_tokens
    assert tokens_of(outputs, spec.work.attempt) == answer_alone(
        spec.work.token_ids, 16, GREEDY, 64
    )


def test_copy_on_write_leaves_the_shared_block_alone() -> None:
    engine, runner = fake_engine(32)
    engine.add(make_spec("a", make_prompt(8), GREEDY))
    engine.step()
    shared = runner.kv.copy()
    engine.add(make_spec("b", make_prompt(8), GREEDY))
    batch = engine.step()
    assert batch.started == [(Attempt("b", 0), 7)]
    written = {int(block) for block in (runner.kv != shared).any(axis=(1, 2)).nonzero()[0]}
    holders = engine.sequences
    first_two = set(holders[Attempt("a", 0)].block_table[:2])
    assert not written & first_two
    assert list(holders[Attempt("b", 0)].block_table[:2]) == list(
        holders[Attempt("a", 0)].block_table[:2]
    )


def test_a_full_pool_computes_the_last_block_again_instead_of_copying_it() -> None:
    engine, _ = fake_engine(4, max_model_len=17)
    engine.add(make_spec("a", make_prompt(16), Sampling(max_tokens=1, temperature=0.0)))
    run_to_end(engine)
    spec = make_spec("b", make_prompt(16), Sampling(max_tokens=1, temperature=0.0))
    engine.add(spec)
    assert run_to_end(engine)[0].started == [(spec.work.attempt, 12)]


def test_twins_computed_at_once_end_up_sharing_their_blocks() -> None:
    engine, _ = fake_engine(32, budget=64)
    sampling = Sampling(max_tokens=12, temperature=0.0)
    specs = [make_spec(name, make_prompt(16), sampling) for name in "abc"]
    for spec in specs:
        engine.add(spec)
    engine.step()
    check_engine(engine)
    tables = [engine.sequences[spec.work.attempt].block_table[:4] for spec in specs]
    assert tables[0] == tables[1] == tables[2]
    outputs = run_to_end(engine)
    assert len({tuple(tokens_of(outputs, spec.work.attempt)) for spec in specs}) == 1


def test_without_a_prefix_cache_nothing_is_shared_or_reported() -> None:
    engine, _ = fake_engine(32, prefix_cache=False)
    for name in "ab":
        spec = make_spec(name, make_prompt(16), GREEDY)
        engine.add(spec)
        outputs = run_to_end(engine)
        assert outputs[0].started == [(spec.work.attempt, 0)]
        assert not any(output.stored for output in outputs)
    assert engine.load().free == 32


def test_preemption_is_bounded_and_changes_no_token() -> None:
    engine, _ = fake_engine(12, max_num_seqs=6, budget=32, max_model_len=40)
    sampling = Sampling(max_tokens=24, temperature=0.8, seed=5)
    specs = [make_spec(str(index), make_prompt(6, index), sampling) for index in range(6)]
    for spec in specs:
        engine.add(spec)
    outputs = []
    most = 0
    while engine.has_work:
        outputs.append(engine.step())
        check_engine(engine)
        most = max([most, *(s.num_preemptions for s in engine.sequences.values())])
    assert engine.counters.preemptions > 0
    assert most <= MAX_PREEMPTIONS
    for spec in specs:
        assert tokens_of(outputs, spec.work.attempt) == answer_alone(
            spec.work.token_ids, 6, sampling, 40
        )
        assert sum(spec.work.attempt == attempt for o in outputs for attempt, _ in o.started) == 1
    assert engine.load().held == 0


def test_a_sequence_preempted_too_often_gets_all_its_blocks_and_stays() -> None:
    engine, _ = fake_engine(12, max_model_len=40)
    spec = make_spec("a", make_prompt(6), Sampling(max_tokens=30, temperature=0.0))
    engine.add(spec)
    engine.sequences[spec.work.attempt].num_preemptions = MAX_PREEMPTIONS
    engine.step()
    sequence = engine.sequences[spec.work.attempt]
    assert sequence.pinned
    assert len(sequence.block_table) == 9
    outputs = run_to_end(engine)
    assert len(tokens_of(outputs, spec.work.attempt)) == 29


def test_stop_ids_eos_and_the_context_end_a_sequence() -> None:
    free = answer_alone(make_prompt(5), 5, Sampling(max_tokens=20, temperature=0.0), 64)
    third = free[2]
    cases = [
        (Sampling(max_tokens=20, temperature=0.0, eos_token_ids=(third,)), 64, "stop"),
        (Sampling(max_tokens=20, temperature=0.0, stop_token_ids=(third,)), 64, "stop"),
        (Sampling(max_tokens=3, temperature=0.0), 64, "length"),
        (Sampling(max_tokens=20, temperature=0.0), 8, "length"),
    ]
    for sampling, max_model_len, reason in cases:
        engine, _ = fake_engine(16, max_model_len=max_model_len)
        spec = make_spec("a", make_prompt(5), sampling)
        engine.add(spec)
        outputs = run_to_end(engine)
        assert tokens_of(outputs, spec.work.attempt) == free[:3]
        assert outputs[-1].tokens == [] or outputs[-1].tokens[-1].finish_reason == reason
        runs = [run for output in outputs for run in output.tokens]
        assert runs[-1].finish_reason == reason


def test_ignore_eos_and_min_tokens() -> None:
    free = answer_alone(make_prompt(5), 5, Sampling(max_tokens=8, temperature=0.0), 64)
    ignoring = Sampling(
        max_tokens=8, temperature=0.0, eos_token_ids=(free[1],), ignore_eos=True, min_tokens=4
    )
    waiting = Sampling(max_tokens=8, temperature=0.0, eos_token_ids=(free[1],), min_tokens=4)
    for sampling in (ignoring, waiting):
        engine, _ = fake_engine(16)
        spec = make_spec("a", make_prompt(5), sampling)
        engine.add(spec)
        tokens = tokens_of(run_to_end(engine), spec.work.attempt)
        assert tokens == answer_alone(spec.work.token_ids, 5, sampling, 64)
        assert len(tokens) >= 4
        if sampling is ignoring:
            assert tokens == free
        else:
            assert free[1] not in tokens[:4]


def test_a_resumed_attempt_counts_the_delivered_tokens() -> None:
    sampling = Sampling(max_tokens=9, temperature=0.9, seed=3)
    whole = answer_alone(make_prompt(5), 5, sampling, 64)
    engine, _ = fake_engine(16)
    spec = make_spec("a", (*make_prompt(5), *whole[:4]), sampling, num_prompt_tokens=5, epoch=1)
    engine.add(spec)
    outputs = run_to_end(engine)
    assert tokens_of(outputs, spec.work.attempt) == whole[4:]
    assert [run.index for output in outputs for run in output.tokens] == [4, 5, 6, 7, 8]


def test_what_can_never_fit_is_refused() -> None:
    engine, _ = fake_engine(4, max_model_len=40)
    for spec in (
        make_spec("empty", (), GREEDY),
        make_spec("long", make_prompt(40), GREEDY),
        make_spec("pool", make_prompt(10), Sampling(max_tokens=8)),
        make_spec("done", make_prompt(9), Sampling(max_tokens=4), num_prompt_tokens=5),
    ):
        with pytest.raises(RequestError):
            engine.add(spec)
    engine.add(make_spec("fits", make_prompt(10), Sampling(max_tokens=7, temperature=0.0)))
    run_to_end(engine)
    assert not engine.sequences


def test_an_attempt_is_taken_once() -> None:
    engine, _ = fake_engine(16)
    spec = make_spec("a", make_prompt(5), GREEDY)
    assert engine.add(spec)
    assert not engine.add(spec)


def test_a_decode_worker_counts_and_names_its_prompt_work() -> None:
    engine, _ = fake_engine(16)
    engine.add(make_spec("a", make_prompt(9), GREEDY))
    run_to_end(engine)
    assert engine.counters.local_prefill_tokens == {"agg": 9}
    assert engine.counters.prompt_tokens_computed == 9
    with pytest.raises(RequestError):
        engine.add(replace(make_spec("b", make_prompt(9), GREEDY), reason=""))


def test_stored_and_removed_follow_the_cache() -> None:
    engine, _ = fake_engine(6, max_model_len=24)
    known: dict[bytes, int] = {}
    for salt in range(5):
        engine.add(make_spec(str(salt), make_prompt(10, salt), GREEDY))
        for output in run_to_end(engine):
            for block_hash in output.removed:
                del known[block_hash]
            for block_hash, depth in output.stored:
                assert block_hash not in known
                known[block_hash] = depth
    assert known == dict(engine.cached_prefixes())
    assert min(known.values()) == 1


def test_what_a_long_prompt_stores_is_told_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also once nothing else is to be done."""
    monkeypatch.setattr(block_pool, "MAX_STORED", 2)
    engine, _ = fake_engine(16, budget=64)
    engine.add(make_spec("a", make_prompt(29), Sampling(max_tokens=1, temperature=0.0)))
    stored = []
    while engine.has_work:
        told = engine.step().stored
        assert len(told) <= 2
        stored.append([depth for _, depth in told])
    assert stored[-4:] == [[1, 2], [3, 4], [5, 6], [7]]


def test_blocks_of_a_long_prompt_that_arrived_are_named_step_by_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (engine_module, adoptions):
        monkeypatch.setattr(module, "MAX_COMMITTED", 2)
    engine, _ = fake_engine(16)
    prompt = make_prompt(29)
    engine.reserve(make_spec("a", prompt, GREEDY, "decode"))
    engine.step()
    engine.adopt(Attempt("a", 0), TokenRun("a", 0, 0, (5,)))
    stored = []
    while engine.has_work:
        stored.append([depth for _, depth in engine.step().stored])
    assert [len(told) for told in stored][:2] == [4, 2], "named as it joins, and with each step"
    assert list(chain(*stored))[:7] == [1, 2, 3, 4, 5, 6, 7]


def test_load_tells_sequences_and_blocks() -> None:
    engine, _ = fake_engine(16, role="prefill", budget=8)
    engine.add(make_spec("a", make_prompt(20), GREEDY, "prefill"))
    engine.add(make_spec("b", make_prompt(20), GREEDY, "prefill"))
    assert _fill(engine) == EngineLoad(0, 2, 16, free=16, cached=0, held=0)
    engine.step()
    assert _fill(engine) == EngineLoad(1, 1, 16, free=11, cached=0, held=5)


def _fill(engine: Engine) -> EngineLoad:
    """The load without what steps take."""
    return replace(engine.load(), step_costs=NO_COSTS)
