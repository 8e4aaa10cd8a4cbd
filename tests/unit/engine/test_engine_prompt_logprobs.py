"""Log-probabilities of prompts: complete and told once, whatever the engine does meanwhile, and no
answer is another for it."""

from dataclasses import replace

import pytest
import torch

from shared.engine.engine import Engine
from shared.engine.handover.output import StepOutput
from shared.engine.scheduling.sequence import SequenceSpec
from shared.message_parts.prompt_logprobs import MAX_PIECE_TOKENS
from shared.protocol import Attempt, Sampling
from tests.support.oracles.prompt_values import TokenValues, values_from, values_of
from tests.unit.engine.fake_runner import (
    answer_alone,
    fake_engine,
    logits_of,
    make_prompt,
    make_spec,
    run_to_end,
    tokens_of,
)

GREEDY = Sampling(max_tokens=6, temperature=0.0)


def scored(num_top: int, spec: SequenceSpec) -> SequenceSpec:
    """The same, with log-probabilities of its prompt; -1: without."""
    return replace(spec, work=replace(spec.work, prompt_logprobs=num_top))


def by_definition(prompt: tuple[int, ...], num_top: int) -> list[TokenValues]:
    pairs = [(token, at) for at, token in enumerate(prompt)]
    logits = torch.stack([logits_of(pairs[: at + 1]) for at in range(len(pairs))])
    return values_from(logits, prompt, num_top)


def told(outputs: list[StepOutput], name: str) -> list[TokenValues]:
    pieces = [piece for output in outputs for attempt, piece in output.scored]
    assert pieces
    return values_of(
        piece for output in outputs for attempt, piece in output.scored if attempt.rid == name
    )


@pytest.mark.parametrize("runs_ahead", [False, True])
@pytest.mark.parametrize("length", [2, 3, 4, 5, 16, 17, 40])
def test_values_are_those_of_the_definition(length: int, runs_ahead: bool) -> None:
    prompt = make_prompt(length)
    engine, _ = fake_engine(32, runs_ahead=runs_ahead)
    engine.add(scored(3, make_spec("a", prompt, GREEDY)))
    outputs = run_to_end(engine)
    assert told(outputs, "a") == by_definition(prompt, 3)
    assert tokens_of(outputs, Attempt("a", 0)) == answer_alone(prompt, length, GREEDY, 64)


def test_values_come_before_token_1_or_with_it() -> None:
    engine, _ = fake_engine(32, budget=8)
    engine.add(scored(0, make_spec("a", make_prompt(20), GREEDY)))
    outputs = run_to_end(engine)
    last = max(at for at, output in enumerate(outputs) if output.scored)
    first_token = next(at for at, output in enumerate(outputs) if output.tokens)
    assert last <= first_token
    assert all(not one.top_ids for one in told(outputs, "a"))


def test_a_prompt_of_one_token_has_none() -> None:
    engine, runner = fake_engine(32)
    engine.add(scored(3, make_spec("a", make_prompt(1), GREEDY)))
    assert not any(output.scored for output in run_to_end(engine))
    assert not runner.num_rows_scored


def test_nobody_else_is_scored_and_others_share_the_step() -> None:
    engine, runner = fake_engine(64, budget=30)
    prompts = {"a": make_prompt(9), "b": make_prompt(5, 1), "c": make_prompt(13, 2)}
    for name, prompt in prompts.items():
        wanted = {"a": 2, "b": -1, "c": 5}[name]
        engine.add(scored(wanted, make_spec(name, prompt, GREEDY)))
    outputs = run_to_end(engine)
    assert runner.num_rows_scored == 8 + 12
    assert told(outputs, "a") == by_definition(prompts["a"], 2)
    assert told(outputs, "c") == by_definition(prompts["c"], 5)
    assert not [1 for output in outputs for attempt, _ in output.scored if attempt.rid == "b"]


def test_a_cached_prompt_is_computed_again_and_leaves_its_blocks_to_others() -> None:
    prompt = make_prompt(16)
    engine, _ = fake_engine(32)
    engine.add(scored(1, make_spec("first", prompt, GREEDY)))
    run_to_end(engine)
    engine.add(scored(1, make_spec("scored", prompt, GREEDY)))
    outputs = run_to_end(engine)
    assert outputs[0].started == [(Attempt("scored", 0), 0)]
    assert told(outputs, "scored") == by_definition(prompt, 1)
    engine.add(make_spec("plain", prompt, GREEDY))
    assert run_to_end(engine)[0].started == [(Attempt("plain", 0), 15)]


def test_tokens_of_an_earlier_attempt_are_no_prompt() -> None:
    prompt = make_prompt(9)
    engine, _ = fake_engine(32)
    spec = scored(2, make_spec("a", (*prompt, 1, 2, 3), GREEDY, num_prompt_tokens=9, epoch=1))
    engine.add(spec)
    assert told(run_to_end(engine), "a") == by_definition(prompt, 2)


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_a_preempted_prompt_is_told_once(runs_ahead: bool) -> None:
    """Two that do not fit together: one is preempted in its answer, or before its prompt's end."""
    sampling = Sampling(max_tokens=20, temperature=0.0)
    engine, _ = fake_engine(10, budget=8, max_model_len=40, runs_ahead=runs_ahead)
    prompts = {name: make_prompt(12, salt) for salt, name in enumerate("abc")}
    for name, prompt in prompts.items():
        engine.add(scored(2, make_spec(name, prompt, sampling)))
    outputs = run_to_end(engine)
    assert engine.counters.preemptions
    for name, prompt in prompts.items():
        assert told(outputs, name) == by_definition(prompt, 2)
        assert tokens_of(outputs, Attempt(name, 0)) == answer_alone(prompt, 12, sampling, 40)


def test_one_that_gives_way_amid_its_prompt_goes_on_where_it_was() -> None:
    prompt = make_prompt(24)
    engine, _ = fake_engine(8, budget=8, max_model_len=30)
    engine.add(scored(1, make_spec("late", prompt, GREEDY, priority=6)))
    outputs = [engine.step()]
    engine.add(make_spec("early", make_prompt(20, 5), GREEDY, priority=0))
    outputs += run_to_end(engine)
    assert engine.counters.preemptions
    assert told(outputs, "late") == by_definition(prompt, 1)


def test_an_aborted_prompt_says_nothing_more() -> None:
    engine, _ = fake_engine(32, budget=8, runs_ahead=True)
    engine.add(scored(1, make_spec("a", make_prompt(24), GREEDY)))
    engine.step()
    engine.abort(Attempt("a", 0))
    assert not any(output.scored for output in run_to_end(engine))


def test_a_handed_over_prompt_is_scored_where_it_is_computed() -> None:
    prompt = make_prompt(10)
    engine, _ = fake_engine(32, role="prefill")
    engine.add(scored(2, make_spec("a", prompt, GREEDY, "prefill")))
    outputs = _until_sealed(engine)
    assert told(outputs, "a") == by_definition(prompt, 2)
    decode, _ = fake_engine(32)
    decode.add(make_spec("warm", prompt, GREEDY))
    run_to_end(decode)
    decode.reserve(scored(2, make_spec("a", prompt, GREEDY, "decode")))
    (reserved,) = decode.step().reserved
    assert reserved[2] == 2, "blocks that need no pull"


def test_a_long_prompt_comes_in_pieces() -> None:
    length = MAX_PIECE_TOKENS + 5
    engine, _ = fake_engine(400, budget=2 * MAX_PIECE_TOKENS, max_model_len=2 * MAX_PIECE_TOKENS)
    engine.add(scored(0, make_spec("a", make_prompt(length), Sampling(max_tokens=1))))
    sizes = [piece.num_tokens for _, piece in engine.step().scored]
    assert sizes == [MAX_PIECE_TOKENS, 4]


def _until_sealed(engine: Engine) -> list[StepOutput]:
    outputs = [engine.step()]
    while not outputs[-1].sealed:
        outputs.append(engine.step())
    return outputs
