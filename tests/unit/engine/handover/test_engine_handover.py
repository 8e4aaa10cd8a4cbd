"""What the engine does for a hand-over: pieces, sealed prefills, reservations, adoption."""

from dataclasses import replace

import pytest

from shared.engine.engine import Engine
from shared.engine.handover.output import StepOutput
from shared.engine.scheduling.block_growth import is_full
from shared.errors import ProtocolError
from shared.kv.memory import first_token_word
from shared.protocol import Attempt, Sampling, TokenRun
from tests.unit.engine.fake_runner import (
    BLOCK_SIZE,
    FakeRunner,
    answer_alone,
    fake_engine,
    make_prompt,
    make_spec,
    run_to_end,
    tokens_of,
)

GREEDY = Sampling(max_tokens=6, temperature=0.0)


def copy_pieces(
    source: FakeRunner,
    target: FakeRunner,
    pieces: list[tuple[int, tuple[int, ...]]],
    table: tuple[int, ...],
) -> None:
    for first, block_ids in pieces:
        for offset, block in enumerate(block_ids):
            target.kv[table[first + offset]] = source.kv[block]


@pytest.mark.parametrize("length", [1, 4, 15, 16, 23])
@pytest.mark.parametrize("turns", [1, 2])
def test_a_handed_over_answer_equals_a_whole_one(length: int, turns: int) -> None:
    prefill, source = fake_engine(32, role="prefill", budget=8)
    decode, target = fake_engine(32)
    sampling = Sampling(max_tokens=7, temperature=0.7, seed=11, logprobs=1)
    for turn in range(turns):
        spec = make_spec(f"p{turn}", make_prompt(length), sampling, "prefill")
        prefill.add(spec)
        outputs = run_to_end(prefill)
        sealed = [run for output in outputs for _, run in output.sealed]
        pieces = [piece for output in outputs for _, piece, _ in output.pieces]
        published = [block for piece in pieces for block in piece.block_ids]
        assert published == list(prefill.sequences[spec.work.attempt].block_table)
        for piece in pieces:
            assert piece.generations == tuple(
                prefill.memory.generations[block] for block in piece.block_ids
            )
        wanted = make_spec(f"p{turn}", make_prompt(length), sampling, "decode")
        decode.reserve(wanted)
        [(attempt, table, num_present)] = decode.step().reserved
        assert num_present == (length // BLOCK_SIZE if turn else 0)
        copy_pieces(
            source,
            target,
            [(piece.first_block, piece.block_ids) for piece in pieces],
            table,
        )
        assert decode.adopt(attempt, sealed[0])
        assert not decode.adopt(attempt, sealed[0])
        prefill.release(spec.work.attempt)
        assert prefill.load().held == 0
        answers = run_to_end(decode)
        first = answers[0].tokens[0]
        assert first.index == 0 and len(first.token_ids) == 2 and len(first.logprobs) == 2
        assert first.token_ids[0] == sealed[0].token_ids[0]
        assert tokens_of(answers, attempt) == answer_alone(
            spec.work.token_ids, length, sampling, 64
        )
    assert decode.counters.local_prefill_tokens == {}
    assert decode.counters.prompt_tokens_computed == 0
    assert decode.load().held == 0


def reserved_copy(
    length: int, sampling: Sampling, *, runs_ahead: bool
) -> tuple[Engine, TokenRun, list[int]]:
    """A decode engine with the KV of prompt "a" in its reserved blocks; token 1, the answer."""
    prefill, source = fake_engine(32, role="prefill")
    decode, target = fake_engine(32, runs_ahead=runs_ahead)
    spec = make_spec("a", make_prompt(length), sampling, "prefill")
    prefill.add(spec)
    outputs = run_to_end(prefill)
    [run] = [run for output in outputs for _, run in output.sealed]
    decode.reserve(replace(spec, mode="decode"))
    [(_, table, _)] = decode.step().reserved
    pieces = [piece for output in outputs for _, piece, _ in output.pieces]
    copy_pieces(source, target, [(piece.first_block, piece.block_ids) for piece in pieces], table)
    return decode, run, answer_alone(spec.work.token_ids, length, sampling, 64)


@pytest.mark.parametrize("runs_ahead", [False, True])
@pytest.mark.parametrize("num_steps", [0, 1, 2, 3])
@pytest.mark.parametrize("length", [7, 8])
@pytest.mark.parametrize("max_tokens", [2, 7])
def test_a_step_before_the_verdict_is_told_after_it(
    max_tokens: int, length: int, num_steps: int, *, runs_ahead: bool
) -> None:
    sampling = Sampling(max_tokens=max_tokens, temperature=0.7, seed=11, logprobs=1)
    decode, run, answer = reserved_copy(length, sampling, runs_ahead=runs_ahead)
    assert decode.begin(run.attempt, run.token_ids[0])
    assert not decode.begin(run.attempt, run.token_ids[0])
    for _ in range(num_steps):
        output = decode.step()
        assert not (output.tokens or output.finished or output.stored)
    assert decode.counters.steps == min(num_steps, 1), "one step, however long the verdict takes"
    if num_steps == 3:
        assert not decode.has_work, "nothing to do before the verdict"
    assert decode.adopt(run.attempt, run)
    assert not decode.adopt(run.attempt, run)
    outputs = run_to_end(decode)
    first = next(output.tokens[0] for output in outputs if output.tokens)
    assert first.index == 0 and len(first.token_ids) == len(first.logprobs) == 2
    assert tokens_of(outputs, run.attempt) == answer
    assert decode.load().held == 0 and decode.counters.early_starts == 1


def test_a_token_that_was_held_back_waits_for_no_other_step() -> None:
    """Where a call of step() lasts as long as the step."""
    decode, run, answer = reserved_copy(9, GREEDY, runs_ahead=False)
    decode.begin(run.attempt, run.token_ids[0])
    decode.step()
    decode.adopt(run.attempt, run)
    output = decode.step()
    assert decode.counters.steps == 1
    assert tokens_of([output], run.attempt) == answer[:2]
    assert tokens_of([output, *run_to_end(decode)], run.attempt) == answer


@pytest.mark.parametrize("max_tokens", [2, 9])
def test_one_that_is_aborted_with_its_verdict_says_nothing(max_tokens: int) -> None:
    """Both arrive before the next step, and its token was held back."""
    sampling = Sampling(max_tokens=max_tokens, temperature=0.0)
    decode, run, _ = reserved_copy(9, sampling, runs_ahead=False)
    decode.begin(run.attempt, run.token_ids[0])
    decode.step()
    assert decode.adopt(run.attempt, run)
    decode.abort(run.attempt)
    outputs = run_to_end(decode)
    assert not any(output.tokens or output.finished for output in outputs)
    assert decode.load().held == 0


@pytest.mark.parametrize("runs_ahead", [False, True])
@pytest.mark.parametrize("num_steps", [0, 1, 2])
def test_nothing_is_left_of_a_step_whose_verdict_was_bad(
    num_steps: int, *, runs_ahead: bool
) -> None:
    decode, run, _ = reserved_copy(9, GREEDY, runs_ahead=runs_ahead)
    decode.begin(run.attempt, run.token_ids[0])
    outputs = [decode.step() for _ in range(num_steps)]
    decode.abort(run.attempt)
    outputs += run_to_end(decode)
    assert not any(output.tokens or output.stored for output in outputs)
    assert not decode.adopt(run.attempt, run)
    load = decode.load()
    assert load.held == load.cached == load.running == 0


def test_token_one_must_be_the_one_that_was_gone_on_from() -> None:
    decode, run, _ = reserved_copy(9, GREEDY, runs_ahead=False)
    decode.begin(run.attempt, run.token_ids[0] + 1)
    decode.step()
    with pytest.raises(ProtocolError, match="token 1 is"):
        decode.adopt(run.attempt, run)
    decode.abort(run.attempt)
    assert decode.load().held == 0


def test_a_sequence_begins_early_only_where_there_is_a_block_for_its_token() -> None:
    engine, _ = fake_engine(5, max_model_len=17)
    for name in "ab":
        engine.reserve(make_spec(name, make_prompt(8, ord(name)), GREEDY, "decode"))
    engine.step()
    assert engine.load().free == 1
    assert engine.begin(Attempt("a", 0), 1)
    assert not engine.begin(Attempt("b", 0), 1)
    assert engine.adopt(Attempt("b", 0), TokenRun("b", 0, 0, (1,)))
    assert engine.load().free == 0


def test_one_that_waits_for_its_verdict_gives_no_blocks_away() -> None:
    """Somebody may still fill them. An older one that lacks a block gives way itself."""
    engine, _ = fake_engine(6, max_model_len=33)
    old, young = Attempt("a", 0), Attempt("b", 0)
    sampling = Sampling(max_tokens=12, temperature=0.0)
    engine.reserve(make_spec("a", make_prompt(7), sampling, "decode"))
    engine.step()
    engine.adopt(old, TokenRun(*old, 0, (1,)))
    engine.reserve(make_spec("b", make_prompt(11, 1), sampling, "decode"))
    while not is_full(engine.sequences[old], BLOCK_SIZE) or engine.load().free:
        engine.step()
    assert engine.begin(young, 1)
    assert engine.step().handed_back == [old]
    assert engine.adopt(young, TokenRun(*young, 0, (1,)))


def test_who_has_not_reserved_does_not_begin() -> None:
    engine, _ = fake_engine(8)
    spec = make_spec("a", make_prompt(8), GREEDY)
    assert not engine.begin(spec.work.attempt, 1)
    engine.add(spec)
    assert not engine.begin(spec.work.attempt, 1)


def test_token_one_is_shown_at_the_last_block_of_its_prompt() -> None:
    prefill, _ = fake_engine(32, role="prefill")
    for length in (7, 8, 8):  # the last one is found in the cache, and its last block is a copy
        spec = make_spec(f"p{prefill.counters.steps}", make_prompt(length), GREEDY, "prefill")
        prefill.add(spec)
        [(_, run)] = [item for output in run_to_end(prefill) for item in output.sealed]
        block = prefill.sequences[spec.work.attempt].block_table[-1]
        generation = prefill.memory.generations[block]
        assert prefill.memory.first_tokens[block] == first_token_word(generation, *run.token_ids)


def test_token_one_is_not_shown_where_it_ends_the_answer() -> None:
    prefill, _ = fake_engine(32, role="prefill")
    [first] = answer_alone(make_prompt(9), 9, Sampling(max_tokens=1, temperature=0.0), 64)
    sampling = Sampling(max_tokens=5, temperature=0.0, stop_token_ids=(first,))
    prefill.add(make_spec("a", make_prompt(9), sampling, "prefill"))
    assert any(output.ended for output in run_to_end(prefill))
    assert not any(prefill.memory.first_tokens)


@pytest.mark.parametrize("num_decoded", [1, 2, 3, 4, 5, 9])
def test_what_decodes_is_handed_over_with_little_computed_again(num_decoded: int) -> None:
    """Its prefix cache has every full block, those of the answer too."""
    leaving, source = fake_engine(32)
    staying, target = fake_engine(32)
    length, sampling = 11, Sampling(max_tokens=14, temperature=0.7, seed=11)
    first = make_spec("a", make_prompt(length), sampling)
    leaving.add(first)
    told = tokens_of(run_until(leaving, num_decoded), first.work.attempt)
    num_computed = leaving.counters.prompt_tokens_computed
    leaving.abort(first.work.attempt)
    token_ids = (*make_prompt(length), *told)
    moved = make_spec("a", token_ids, sampling, "prefill", num_prompt_tokens=length, epoch=1)
    leaving.add(moved)
    outputs = run_to_end(leaving)
    [run] = [run for output in outputs for _, run in output.sealed]
    again = leaving.counters.prompt_tokens_computed - num_computed
    assert 0 < again <= 2 * BLOCK_SIZE
    assert leaving.counters.local_prefill_tokens == {"agg": length}, "no prompt is computed here"
    staying.reserve(replace(moved, mode="decode"))
    [(attempt, table, _)] = staying.step().reserved
    pieces = [piece for output in outputs for _, piece, _ in output.pieces]
    copy_pieces(source, target, [(piece.first_block, piece.block_ids) for piece in pieces], table)
    assert staying.adopt(attempt, run)
    leaving.release(attempt)
    answer = told + tokens_of(run_to_end(staying), attempt)
    assert answer == answer_alone(first.work.token_ids, length, sampling, 64)
    assert leaving.load().held == staying.load().held == 0


def run_until(engine: Engine, num_tokens: int) -> list[StepOutput]:
    """The one sequence has told that many output tokens."""
    outputs: list[StepOutput] = []
    while sum(len(run.token_ids) for output in outputs for run in output.tokens) < num_tokens:
        outputs.append(engine.step())
    return outputs


def test_a_prefill_that_ends_at_token_one_is_not_handed_over() -> None:
    engine, _ = fake_engine(16, role="prefill")
    spec = make_spec("a", make_prompt(9), Sampling(max_tokens=1, temperature=0.0), "prefill")
    engine.add(spec)
    outputs = run_to_end(engine)
    assert [attempt for output in outputs for attempt in output.ended] == [spec.work.attempt]
    assert not any(output.sealed or output.finished for output in outputs)
    assert engine.load().held == 0


def test_a_held_prefill_keeps_its_blocks_until_release() -> None:
    engine, _ = fake_engine(4, role="prefill", max_model_len=17)
    first = make_spec("a", make_prompt(12), GREEDY, "prefill")
    second = make_spec("b", make_prompt(12, 1), GREEDY, "prefill")
    engine.add(first)
    engine.add(second)
    outputs = run_to_end(engine)
    assert [attempt for output in outputs for attempt, _ in output.started] == [first.work.attempt]
    assert not engine.has_work
    engine.release(first.work.attempt)
    engine.release(first.work.attempt)
    assert [a for o in run_to_end(engine) for a, _ in o.sealed] == [second.work.attempt]
    engine.abort(second.work.attempt)
    assert engine.load().held == 0


def test_reservations_wait_in_order_for_all_their_blocks() -> None:
    engine, _ = fake_engine(6, max_model_len=24)
    specs = [
        make_spec(str(index), make_prompt(length, index), GREEDY, "decode")
        for index, length in enumerate((16, 12, 2))
    ]
    for spec in specs:
        engine.reserve(spec)
    assert [attempt for attempt, _, _ in engine.step().reserved] == [specs[0].work.attempt]
    assert not engine.has_work
    engine.abort(specs[0].work.attempt)
    assert [attempt for attempt, _, _ in engine.step().reserved] == [
        specs[1].work.attempt,
        specs[2].work.attempt,
    ]


def test_a_decode_worker_under_pressure_hands_the_youngest_back() -> None:
    engine, _ = fake_engine(8, max_model_len=33)
    sampling = Sampling(max_tokens=20, temperature=0.0)
    specs = [make_spec(name, make_prompt(8, ord(name)), sampling, "decode") for name in "ab"]
    for spec in specs:
        engine.reserve(spec)
    for attempt, _, _ in engine.step().reserved:
        assert engine.adopt(attempt, TokenRun(*attempt, 0, (1,)))
    outputs = run_to_end(engine)
    assert [a for output in outputs for a in output.handed_back] == [specs[1].work.attempt]
    assert [a for output in outputs for a in output.finished] == [specs[0].work.attempt]
    assert engine.counters.preemptions == 0 and engine.counters.handed_back == 1
    assert engine.load().held == 0


def test_token_one_must_continue_the_sequence() -> None:
    engine, _ = fake_engine(8)
    spec = make_spec("a", make_prompt(8), GREEDY, "decode")
    engine.reserve(spec)
    engine.step()
    with pytest.raises(ProtocolError):
        engine.adopt(spec.work.attempt, TokenRun("a", 0, 3, (1,)))
