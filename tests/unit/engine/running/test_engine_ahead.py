"""An engine that decides a step while the one before it runs: what it costs and what it reports."""

import pytest
import torch

from shared.engine.handover.output import StepOutput
from shared.engine.running.empty_steps import decode_step
from shared.engine.running.step_clock import DECODE_STRIDE
from shared.engine.scheduling.batch import SKIP_SLOT, HostBatch
from shared.protocol import Sampling
from tests.support.oracles.engine_integrity import check_engine
from tests.unit.engine.fake_runner import (
    WHOLE_ROWS,
    answer_alone,
    fake_engine,
    make_prompt,
    make_spec,
    run_to_end,
    tokens_of,
)

PROMPT = make_prompt(9)
GREEDY = Sampling(max_tokens=5, temperature=0.0, ignore_eos=True)


def test_a_step_is_reported_by_the_call_after_the_one_that_started_it() -> None:
    engine, runner = fake_engine(16, runs_ahead=True)
    engine.add(make_spec("a", PROMPT, GREEDY))
    assert not engine.step().tokens
    assert runner.num_tokens_fed == len(PROMPT)
    [run] = engine.step().tokens
    assert runner.num_tokens_fed == len(PROMPT) + 1
    assert (run.index, len(run.token_ids)) == (0, 1)


def test_tokens_are_those_of_an_engine_that_waits() -> None:
    for sampling in (GREEDY, Sampling(max_tokens=6, temperature=0.8, seed=3, ignore_eos=True)):
        engine, _ = fake_engine(32, runs_ahead=True)
        prompts = [make_prompt(length, length) for length in (1, 4, 11, 22)]
        specs = [make_spec(str(len(prompt)), prompt, sampling) for prompt in prompts]
        for spec in specs:
            engine.add(spec)
        outputs = run_to_end(engine)
        for spec, prompt in zip(specs, prompts, strict=True):
            wanted = answer_alone(prompt, len(prompt), sampling, 64)
            assert tokens_of(outputs, spec.work.attempt) == wanted


def test_a_few_tokens_of_a_prompt_are_started_as_a_whole() -> None:
    for length, chunks in ((WHOLE_ROWS, []), (WHOLE_ROWS + 1, [WHOLE_ROWS + 1])):
        engine, runner = fake_engine(16, runs_ahead=True)
        engine.add(make_spec("a", make_prompt(length), GREEDY))
        engine.step()
        assert (runner.num_tokens_fed, runner.chunk_ends) == (length, chunks)


def test_nothing_is_computed_after_a_length_that_is_known_to_end_it() -> None:
    engine, runner = fake_engine(16, runs_ahead=True)
    engine.add(make_spec("a", PROMPT, GREEDY))
    run_to_end(engine)
    assert runner.num_tokens_fed == len(PROMPT) + GREEDY.max_tokens - 1
    assert not engine.has_work


def test_a_stop_token_costs_one_row_and_no_more() -> None:
    first, second, *_ = answer_alone(PROMPT, len(PROMPT), GREEDY, 64)
    engine, runner = fake_engine(16, runs_ahead=True)
    stopping = Sampling(max_tokens=5, temperature=0.0, stop_token_ids=(second,))
    engine.add(make_spec("a", PROMPT, stopping))
    outputs = run_to_end(engine)
    assert _all_tokens(outputs) == [first, second]
    assert runner.num_tokens_fed == len(PROMPT) + 1 + 1
    assert engine.load().held == 0


def test_an_abort_while_a_step_runs_takes_its_tokens_with_it() -> None:
    engine, _ = fake_engine(16, runs_ahead=True)
    spec = make_spec("a", PROMPT, GREEDY)
    engine.add(spec)
    engine.step()
    engine.abort(spec.work.attempt)
    check_engine(engine)
    assert not _all_tokens(run_to_end(engine))
    assert engine.load().held == 0


def test_a_preempted_sequence_keeps_the_token_that_was_on_its_way() -> None:
    engine, _ = fake_engine(6, runs_ahead=True, max_model_len=24, max_num_seqs=2)
    specs = [
        make_spec(
            name, make_prompt(7, salt), Sampling(max_tokens=12, temperature=0.0, ignore_eos=True)
        )
        for salt, name in enumerate("ab")
    ]
    for spec in specs:
        engine.add(spec)
    outputs = run_to_end(engine)
    assert engine.counters.preemptions
    for spec in specs:
        wanted = answer_alone(spec.work.token_ids, 7, spec.work.sampling, 24)
        assert tokens_of(outputs, spec.work.attempt) == wanted


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_every_prompt_step_and_some_decode_steps_teach_what_steps_take(runs_ahead: bool) -> None:
    engine, _ = fake_engine(16, budget=8, runs_ahead=runs_ahead)
    engine.step_clock.warm()
    engine.add(make_spec("a", make_prompt(20), Sampling(40, temperature=0.0, ignore_eos=True)))
    run_to_end(engine)
    num_chunks = 3
    num_decode_steps = engine.counters.steps - num_chunks
    assert engine.step_clock.model.error.count == num_chunks + num_decode_steps // DECODE_STRIDE
    assert engine.load().step_error > 0


def _all_tokens(outputs: list[StepOutput]) -> list[int]:
    return [token for output in outputs for run in output.tokens for token in run.token_ids]


def test_an_engine_rehearses_until_nothing_is_left_to_make() -> None:
    engine, runner = fake_engine(16, runs_ahead=True)
    ran: list[int] = []

    def rehearsal() -> HostBatch | None:
        return decode_step(2 - len(ran)) if len(ran) < 2 else None

    def run(batch: HostBatch, *_: object) -> torch.Tensor:
        ran.append(batch.shape.num_tokens)
        assert (batch.slot_mapping == SKIP_SLOT).all()
        return torch.empty(0)

    runner.rehearsal, runner.run = rehearsal, run  # type: ignore[method-assign,assignment]
    engine.rehearse()
    assert ran == [2, 1]
    check_engine(engine)


def test_an_abort_while_a_copy_is_in_flight_leaves_the_pool_whole() -> None:
    """The copied block's ancestors go with the table of the sequence; whoever comes next gets all
    blocks that are said to be available."""
    engine, _ = fake_engine(4, runs_ahead=True, max_model_len=16)
    two = Sampling(max_tokens=2, temperature=0.0, ignore_eos=True)
    cached = make_prompt(8)  # two whole blocks
    engine.add(make_spec("a", cached, Sampling(max_tokens=1, temperature=0.0)))
    run_to_end(engine)
    second = make_spec("b", cached, two)
    engine.add(second)
    engine.step()
    engine.abort(second.work.attempt)
    check_engine(engine)
    third = make_spec("c", make_prompt(10, salt=5), two)
    engine.add(third)
    wanted = answer_alone(third.work.token_ids, 10, two, 16)
    assert tokens_of(run_to_end(engine), third.work.attempt) == wanted
