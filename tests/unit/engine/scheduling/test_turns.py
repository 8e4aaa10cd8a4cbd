"""Sequences that are computed alone: no step computes one together with anything else, everybody
gets on, and every answer is what it would have been.

Guards: a death of an engine that is blamed on the wrong request.
"""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.engine.engine import Engine
from shared.engine.handover.output import StepOutput
from shared.engine.scheduling.scheduled_batch import ScheduledBatch
from shared.engine.scheduling.sequence import Sequence, SequenceSpec
from shared.engine.scheduling.turns import Turns
from shared.protocol import ALONE_TOKENS, Sampling
from tests.support.oracles.engine_integrity import check_engine
from tests.unit.engine.fake_runner import answer_alone, fake_engine, make_prompt, make_spec

GREEDY = Sampling(max_tokens=6, temperature=0.0, ignore_eos=True)


def spec_of(name: str, length: int, *, alone: bool, salt: int = 0) -> SequenceSpec:
    spec = make_spec(name, make_prompt(length, salt), GREEDY)
    return replace(spec, work=replace(spec.work, alone=alone))


def watched(engine: Engine) -> list[ScheduledBatch]:
    """Every step that computes something, as it is scheduled."""
    steps: list[ScheduledBatch] = []
    schedule = engine._scheduler.schedule

    def scheduled() -> ScheduledBatch:
        assert not (engine.in_flight and engine._scheduler.turns.any), "two steps at once"
        batch = schedule()
        if batch.items:
            steps.append(batch)
        return batch

    engine._scheduler.schedule = scheduled  # type: ignore[method-assign]
    return steps


def run_to_end(engine: Engine) -> dict[str, list[int]]:
    answers: dict[str, list[int]] = {}
    for _ in range(2000):
        if not engine.has_work:
            return answers
        output: StepOutput = engine.step()
        check_engine(engine)
        for run in output.tokens:
            answers.setdefault(run.rid, []).extend(run.token_ids)
    raise AssertionError("it never ends")


@given(
    lengths=st.lists(st.tuples(st.integers(1, 20), st.booleans()), min_size=1, max_size=6),
    runs_ahead=st.booleans(),
    num_blocks=st.integers(8, 24),
)
@settings(max_examples=60, deadline=None)
def test_one_is_alone_or_all_others_run(
    lengths: list[tuple[int, bool]], runs_ahead: bool, num_blocks: int
) -> None:
    engine, _ = fake_engine(num_blocks, max_model_len=28, runs_ahead=runs_ahead)
    steps = watched(engine)
    specs = [
        spec_of(str(number), length, alone=alone, salt=number)
        for number, (length, alone) in enumerate(lengths)
    ]
    for spec in specs:
        engine.add(spec)
    answers = run_to_end(engine)
    for step in steps:
        lone = [item.sequence for item in step.items if item.sequence.work.alone]
        assert lone == ([] if step.alone is None else [step.alone])
        assert len(step.items) == 1 or not lone
    for spec in specs:
        work = spec.work
        wanted = answer_alone(work.token_ids, len(work.token_ids), GREEDY, 28)
        assert answers[work.attempt.rid] == wanted
    assert not engine._scheduler.turns.any


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_all_have_their_turn(*, runs_ahead: bool) -> None:
    """One long answer does not hold up the others, alone or not."""
    engine, _ = fake_engine(32, budget=64, runs_ahead=runs_ahead)
    steps = watched(engine)
    for name, alone in (("a", True), ("b", False), ("c", True), ("d", False)):
        engine.add(spec_of(name, 5, alone=alone, salt=ord(name)))
    run_to_end(engine)
    whose = ["".join(item.sequence.attempt.rid for item in step.items) for step in steps]
    assert whose == ["bd", "a", "bd", "c"] * (GREEDY.max_tokens // 2) + ["a", "c"] * (
        GREEDY.max_tokens // 2
    )


def test_whoever_has_got_on_is_computed_with_the_others_again() -> None:
    engine, _ = fake_engine(32, budget=64)
    steps = watched(engine)
    sampling = replace(GREEDY, max_tokens=ALONE_TOKENS + 4)
    for name, alone in (("a", True), ("b", False)):
        spec = replace(spec_of(name, 5, alone=alone, salt=ord(name)))
        engine.add(replace(spec, work=replace(spec.work, sampling=sampling)))
    run_to_end(engine)
    whose = ["".join(item.sequence.attempt.rid for item in step.items) for step in steps]
    assert whose[: 2 * ALONE_TOKENS] == ["b", "a"] * ALONE_TOKENS
    assert whose[2 * ALONE_TOKENS :] == ["ab"] * 4


def test_one_that_waits_or_is_held_does_not_slow_the_others() -> None:
    engine, _ = fake_engine(16, role="prefill", runs_ahead=True)
    spec = make_spec("a", make_prompt(5), GREEDY, "prefill")
    engine.add(replace(spec, work=replace(spec.work, alone=True)))
    while not engine.step().sealed:
        pass
    assert not engine._scheduler.turns.any, "it is held"


def test_what_runs_alone_is_told_before_it_runs_and_until_it_has() -> None:
    engine, _ = fake_engine(16, runs_ahead=True)
    told: list[StepOutput] = []
    engine.on_scheduled = told.append
    spec = spec_of("a", 5, alone=True)
    engine.add(spec)
    engine.step()
    assert [output.alone for output in told] == [spec.work.attempt]
    assert engine.alone == spec.work.attempt, "it is in flight"
    engine.step()
    assert engine.alone is None
    assert len(told) == 1, "the step in flight is booked first"


def test_one_that_gives_way_in_the_turn_of_another_has_none() -> None:
    """A sequence that finds no block takes those of the youngest, then gives way itself."""
    turns = Turns()
    first, second = (
        Sequence(spec_of(name, 5, alone=True), arrival) for arrival, name in enumerate("ab")
    )
    turns.enter(first)
    turns.enter(second)
    tried: list[Sequence | None] = []
    for alone in turns.next():
        tried.append(alone)
        if alone is first:
            turns.leave(second)
            turns.leave(first)
    assert tried == [None, first]
    assert not turns.any


def test_one_that_is_dropped_has_no_turn() -> None:
    engine, _ = fake_engine(16)
    spec = spec_of("a", 5, alone=True)
    engine.add(spec)
    engine.step()
    engine.abort(spec.work.attempt)
    engine.add(spec_of("b", 5, alone=False))
    assert not engine._scheduler.turns.any
    assert len(run_to_end(engine)["b"]) == GREEDY.max_tokens


def test_a_later_class_gets_on_though_prompts_end_in_all_steps_of_the_others() -> None:
    """What a light step left out is not left out again after a step that was another's alone."""
    engine, _ = fake_engine(num_blocks=64)
    steps = watched(engine)
    for name, length, alone, priority in (("alone", 5, True, 3), ("bulk", 48, False, 5)):
        spec = spec_of(name, length, alone=alone)
        sampling = replace(GREEDY, max_tokens=16)
        engine.add(replace(spec, work=replace(spec.work, sampling=sampling, priority=priority)))
    for number in range(5):
        short = spec_of(f"short {number}", 4, alone=False, salt=1 + number)
        one_token = replace(GREEDY, max_tokens=1)
        engine.add(replace(short, work=replace(short.work, sampling=one_token)))
        engine.step()
        engine.step()
    names = [[item.sequence.attempt.rid for item in step.items] for step in steps]
    assert names[1::2] == [["alone"]] * 5
    assert ["short 1", "bulk"] in names
    assert ["short 3", "bulk"] in names
