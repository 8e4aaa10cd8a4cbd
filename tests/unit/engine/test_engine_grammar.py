"""An engine's sequences with a grammar: when they start, what they may say, when they end."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from shared.engine.engine import Engine
from shared.engine.handover.output import StepOutput
from shared.engine.layers.kv_cache import pool_of
from shared.engine.scheduling.grammars import Grammars
from shared.engine.scheduling.sequence import SequenceSpec, SequenceState
from shared.errors import OffGrammarError
from shared.grammar import source
from shared.grammar.matcher import GrammarVocabulary, Matcher
from shared.protocol import Attempt, Sampling, TokenRun
from tests.support.measured import Measured
from tests.support.models.structured_model import (
    StructuredModel,
    run_all,
    spec_of,
    structured_model,
    tokens_of,
)
from tests.support.oracles.engine_integrity import check_engine

PROMPT = tuple(range(50, 90))
WAIT_S = 20.0
DEAD_END = 'start: "a" B\nB: /x[^\\x00-\\U0010FFFF]/'
"""compiles, and has a first token; only after it is it seen that nothing can follow"""
DEEP = "start: %json " + '{"items": ' * 500 + '{"type": "nope"}' + "}" * 500
LONG_NUMBER = 'start: %json {"type": "nope", "minimum": ' + "9" * 5000 + "}"
"""gateways refuse these two before; a worker must outlive a gateway that does not"""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> StructuredModel:
    return structured_model(tmp_path_factory.mktemp("structured"))


def sampling(model: StructuredModel, grammar: str, **options: Any) -> Sampling:
    told = {"max_tokens": 40, "seed": 3, "eos_token_ids": model.eos_token_ids, **options}
    return Sampling(grammar=grammar, **told)


def answer(model: StructuredModel, chosen: Sampling) -> tuple[str, str | None, list[int]]:
    runs = run_all(model.engine(), [spec_of("r", PROMPT, chosen)])["r"]
    token_ids = tokens_of(runs)
    return model.text(token_ids), runs[-1].finish_reason, token_ids


class SlowVocabulary(GrammarVocabulary):
    """Compiles when the test lets it."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self._vocabulary = vocabulary
        self.go_on = threading.Event()
        self.num_compiled = 0

    def compile(self, grammar: str) -> Matcher:
        assert self.go_on.wait(WAIT_S)
        self.num_compiled += 1
        return self._vocabulary.compile(grammar)


def slow_vocabulary(model: StructuredModel) -> SlowVocabulary:
    checkpoint = model.checkpoint
    return SlowVocabulary(
        GrammarVocabulary.load(
            checkpoint.path, checkpoint.config.vocab_size, checkpoint.eos_token_ids
        )
    )


def step_until_failed(engine: Engine) -> StepOutput:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        output = engine.step()
        check_engine(engine)
        if output.failed or output.refused:
            return output
    raise AssertionError("nothing failed")


def test_it_ends_with_the_token_after_which_nothing_can_follow(model: StructuredModel) -> None:
    text, reason, token_ids = answer(model, sampling(model, 'start: "yes" | "no"'))
    assert text in ("yes", "no") and reason == "stop"
    assert not set(token_ids) & set(model.eos_token_ids)


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_it_ends_also_where_eos_is_ignored(model: StructuredModel, ignore_eos: bool) -> None:
    """The grammar could go on forever; EOS ends it as soon as it is complete."""
    chosen = sampling(model, 'start: "ab"+', ignore_eos=ignore_eos, max_tokens=400)
    text, reason, _ = answer(model, chosen)
    assert text == "ab" * (len(text) // 2) != "" and reason == "stop"


def test_a_grammar_beats_min_tokens(model: StructuredModel) -> None:
    text, reason, _ = answer(model, sampling(model, 'start: "yes"', min_tokens=30))
    assert (text, reason) == ("yes", "stop")
    text, _, token_ids = answer(model, sampling(model, 'start: "ab"+', min_tokens=12))
    assert len(token_ids) >= 12 and text == "ab" * (len(text) // 2)


def test_max_tokens_cut_it(model: StructuredModel) -> None:
    chosen = sampling(model, 'start: "abcdefgh"', max_tokens=2)
    text, reason, token_ids = answer(model, chosen)
    assert reason == "length" and len(token_ids) == 2 and "abcdefgh".startswith(text)


def test_a_cut_at_the_last_token_is_a_stop(model: StructuredModel) -> None:
    """Both are true; the client gets the good news."""
    whole = answer(model, sampling(model, 'start: "abcdefgh"'))
    chosen = sampling(model, 'start: "abcdefgh"', max_tokens=len(whole[2]))
    assert answer(model, chosen) == whole


def test_a_stop_token_still_stops(model: StructuredModel) -> None:
    stop = model.tokenizer.encode("b").ids[0]
    chosen = sampling(model, 'start: /a{3}/ "b" "cccc"', stop_token_ids=(stop,))
    text, reason, token_ids = answer(model, chosen)
    assert reason == "stop" and text.startswith("aaa")
    assert token_ids[-1] == stop or text == "aaabcccc"


def test_logprobs_are_of_the_raw_distribution(model: StructuredModel) -> None:
    free = run_all(model.engine(), [spec_of("r", PROMPT, sampling(model, "", logprobs=2))])["r"]
    bound = run_all(
        model.engine(), [spec_of("r", PROMPT, sampling(model, 'start: "yes"', logprobs=2))]
    )["r"]
    assert bound[0].logprobs[0].top_ids == free[0].logprobs[0].top_ids


def test_token_1_of_a_prefill_is_in_the_grammar(model: StructuredModel) -> None:
    engine = model.engine("prefill")
    first: set[str] = set()
    for seed in range(20):
        chosen = sampling(model, 'start: "x" /[0-9]{4}/', seed=seed)
        engine.add(spec_of(f"r{seed}", PROMPT, chosen, "prefill"))
    while len(first) < 1 or engine.has_work:
        output = engine.step()
        first |= {model.text(run.token_ids)[:1] for run in output.tokens}
        for attempt, _ in output.sealed:
            engine.release(attempt)
    assert first == {"x"}


def test_others_go_on_while_a_grammar_compiles(model: StructuredModel) -> None:
    """Also those that came later, and also in mode decode while its KV arrives."""
    vocabulary = slow_vocabulary(model)
    engine = model.engine(grammars=Grammars(vocabulary))
    pool_of(engine.memory).zero_()
    woken = threading.Event()
    engine.grammars.on_ready = woken.set
    grammar = 'start: "yes"'
    engine.add(spec_of("slow", PROMPT, sampling(model, grammar)))
    engine.reserve(spec_of("handed", PROMPT, sampling(model, grammar), "decode"))
    engine.add(spec_of("free", PROMPT, sampling(model, "")))
    told: list[str] = []
    while "free" in {attempt.rid for attempt in engine.sequences}:
        output = engine.step()
        check_engine(engine)
        told += [run.rid for run in output.tokens]
        for attempt, _, _ in output.reserved:
            first = model.tokenizer.encode("yes").ids[:1]
            assert engine.adopt(attempt, TokenRun(*attempt, 0, tuple(first)))
            assert not engine.adopt(attempt, TokenRun(*attempt, 0, tuple(first)))
    while engine.has_work:
        engine.step()
    assert set(told) == {"free"}
    assert engine.sequences[Attempt("slow", 0)].state is SequenceState.COMPILING
    vocabulary.go_on.set()
    assert woken.wait(WAIT_S)
    texts = {"slow": "", "handed": ""}
    while engine.sequences:
        for run in engine.step().tokens:
            texts[run.rid] += model.text(run.token_ids)
        check_engine(engine)
    assert texts == {"slow": "yes", "handed": "yes"}
    assert vocabulary.num_compiled == 1


def test_one_that_is_aborted_while_its_grammar_compiles_is_gone(model: StructuredModel) -> None:
    vocabulary = slow_vocabulary(model)
    engine = model.engine(grammars=Grammars(vocabulary))
    spec = spec_of("r", PROMPT, sampling(model, 'start: "yes"'))
    assert engine.add(spec) and not engine.add(spec)
    engine.abort(spec.work.attempt)
    vocabulary.go_on.set()
    engine.step()
    check_engine(engine)
    assert not engine.sequences and not engine.has_work
    run_all(engine, [spec])


@pytest.mark.parametrize(
    ("grammar", "output", "problem", "refused"),
    [
        ("start: nowhere", (), "unknown name", True),
        (DEAD_END, (), "no output matches", True),
        ('start: "yes"', (5, 6, 7), "cannot go on", False),
        (DEEP, (), "recursion limit", True),
        (LONG_NUMBER, (), "", True),
    ],
    ids=["does not compile", "a dead end", "left by its output", "too deep", "a long number"],
)
def test_what_cannot_be_followed_fails_alone(
    model: StructuredModel, grammar: str, output: tuple[int, ...], problem: str, refused: bool
) -> None:
    """What no output can match is refused. An output that another worker made without its grammar
    is lost here."""
    engine = model.engine()
    engine.add(spec_of("bad", PROMPT, sampling(model, grammar), output=output))
    engine.add(spec_of("good", PROMPT, sampling(model, 'start: "yes"')))
    last = step_until_failed(engine)
    ((attempt, told),) = last.refused if refused else last.failed
    assert attempt.rid == "bad" and problem in told
    assert not (last.failed if refused else last.refused)
    while engine.sequences:
        engine.step()
    check_engine(engine)


def test_an_adopted_token_outside_the_grammar_fails_the_attempt(model: StructuredModel) -> None:
    engine = model.engine()
    spec = spec_of("r", PROMPT, sampling(model, 'start: "yes"'), "decode")
    engine.reserve(spec)
    engine.step()
    wrong = model.tokenizer.encode("no").ids[0]
    assert engine.adopt(spec.work.attempt, TokenRun(*spec.work.attempt, 0, (wrong,)))
    assert step_until_failed(engine).failed[0][0] == spec.work.attempt
    assert not engine.sequences and engine.load().held == 0


def test_a_grammar_that_breaks_off_fails_the_attempt(
    model: StructuredModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit of the library reached in the middle of an answer."""

    def accept(matcher: Matcher, token_id: int) -> None:
        raise OffGrammarError("too complex")

    engine = model.engine()
    engine.add(spec_of("r", PROMPT, sampling(model, 'start: "yes"')))
    monkeypatch.setattr(Matcher, "accept", accept)
    assert step_until_failed(engine).failed == [(Attempt("r", 0), "too complex")]
    assert not engine.sequences and engine.load().held == 0


def test_a_dead_end_is_seen_before_an_attempt_that_continues_there_begins(
    model: StructuredModel,
) -> None:
    engine = model.engine()
    output = tuple(model.tokenizer.encode("a").ids)
    spec = spec_of("r", PROMPT, sampling(model, DEAD_END), output=output)
    engine.add(spec)
    assert step_until_failed(engine).refused == [
        (spec.work.attempt, "no output matches the grammar")
    ]
    assert engine.counters.steps == 0


def test_a_grammar_that_many_outputs_wore_out_is_compiled_anew(
    model: StructuredModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All outputs of a compiled grammar share the states that its lexer learns."""
    monkeypatch.setattr("shared.grammar.matcher.MAX_LEXER_STATES", 700)
    pattern = {"type": "string", "pattern": "^[ab]{20,40}a[ab]{24}$"}
    grammar, engine, num_failed, failed = source.json_schema(pattern), model.engine(), 0, False
    for number in range(60):
        chosen = sampling(model, grammar, seed=number, temperature=1.0, max_tokens=80)
        engine.add(spec_of(f"r{number}", PROMPT, chosen))
        was_failed, failed = failed, False
        while engine.sequences:
            failed = bool(engine.step().failed) or failed
        assert not (was_failed and failed), "one output alone does not wear it out"
        num_failed += failed
    assert 0 < num_failed < 20


def test_without_the_library_only_requests_with_a_grammar_fail(model: StructuredModel) -> None:
    engine = model.engine(grammars=Grammars(None))
    engine.add(spec_of("r", PROMPT, sampling(model, 'start: "yes"')))
    ((_, told),) = step_until_failed(engine).failed
    assert "cannot follow grammars" in told
    run_all(engine, [spec_of("free", PROMPT, sampling(model, ""))])


def test_compiled_grammars_are_kept_up_to_a_number(
    model: StructuredModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.engine.scheduling.grammars.NUM_COMPILED", 2)
    vocabulary = slow_vocabulary(model)
    vocabulary.go_on.set()
    engine = model.engine(grammars=Grammars(vocabulary))
    for number, name in enumerate("aabcbca"):
        run_all(engine, [spec_of(f"r{number}", PROMPT, sampling(model, f'start: "{name}"'))])
    assert vocabulary.num_compiled == 4


@pytest.mark.clock
def test_a_slow_grammar_does_not_delay_a_step(model: StructuredModel, measured: Measured) -> None:
    """The library lets go of the interpreter while it compiles: some 300 ms here."""
    wide = {"enum": [f"{number:x} {number * 7919:o}" for number in range(60_000)]}
    engine = model.engine()
    specs: list[SequenceSpec] = [
        spec_of("free", PROMPT, sampling(model, "", max_tokens=700, ignore_eos=True)),
        spec_of("slow", PROMPT, sampling(model, source.json_schema(wide), max_tokens=2)),
    ]
    engine.add(specs[0])
    for _ in range(20):
        engine.step()
    started = time.perf_counter()
    engine.add(specs[1])
    longest_s, num_steps = 0.0, 0
    while engine.sequences[Attempt("slow", 0)].state is SequenceState.COMPILING:
        begun = time.perf_counter()
        assert not engine.step().failed
        longest_s = max(longest_s, time.perf_counter() - begun)
        num_steps += 1
    compiled_s = time.perf_counter() - started
    assert num_steps > 5
    measured.at_most("longest step during a compilation", longest_s, compiled_s / 2, "s")
