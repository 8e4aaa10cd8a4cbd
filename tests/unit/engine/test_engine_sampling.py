"""Penalised, biased and min-p answers are the same however often a sequence is interrupted.

The failure guarded: state that depends on the output is lost or counted again where an attempt
is resumed, handed over or preempted.
"""

from collections.abc import Sequence as Run

import pytest
import torch

from shared.engine.handover.output import StepOutput
from shared.engine.sampling.token_counts import TokenCounts, counts_for
from shared.engine.scheduling import sequence
from shared.engine.scheduling.sequence import Mode, Sequence, SequenceSpec
from shared.protocol import Attempt, Sampling, TokenRun
from tests.unit.engine.fake_runner import (
    answer_alone,
    fake_engine,
    make_prompt,
    make_spec,
    run_to_end,
    tokens_of,
)

torch.set_num_threads(1)

PROMPT = make_prompt(11)
BIAS = tuple((token_id, 1.5) for token_id in range(0, 16, 3))
SAMPLINGS = {
    "presence": Sampling(24, 0.8, seed=3, presence_penalty=1.5),
    "frequency-greedy": Sampling(24, 0.0, frequency_penalty=0.9, logit_bias=BIAS),
    "repetition": Sampling(24, 0.7, seed=5, repetition_penalty=1.4),
    "repetition-greedy": Sampling(24, 0.0, repetition_penalty=2.0, presence_penalty=-1.0),
    "bias": Sampling(24, 1.0, seed=1, logit_bias=BIAS),
    "min-p": Sampling(24, 1.2, seed=2, min_p=0.2),
    "all": Sampling(
        24,
        0.9,
        top_k=20,
        top_p=0.9,
        seed=8,
        min_p=0.05,
        presence_penalty=0.4,
        frequency_penalty=0.3,
        repetition_penalty=1.2,
        logit_bias=BIAS,
    ),
}
PENALISED = [name for name in SAMPLINGS if name not in ("bias", "min-p")]


def by_definition(sampling: Sampling) -> list[int]:
    return answer_alone(PROMPT, len(PROMPT), sampling, 64)


def resumed(sampling: Sampling, delivered: Run[int], mode: Mode = "full") -> SequenceSpec:
    return make_spec(
        "a",
        (*PROMPT, *delivered),
        sampling,
        mode,
        num_prompt_tokens=len(PROMPT),
        epoch=len(delivered),
    )


def answer_after(sampling: Sampling, num_delivered: int, answer: list[int]) -> list[int]:
    """What a retry with these delivered tokens adds, in one engine."""
    engine, _ = fake_engine(16)
    spec = resumed(sampling, answer[:num_delivered])
    engine.add(spec)
    return tokens_of_attempt(run_to_end(engine), spec.work.attempt)


def tokens_of_attempt(outputs: Run[StepOutput], attempt: Attempt) -> list[int]:
    runs = [run for output in outputs for run in output.tokens]
    return [token for run in runs if run.attempt == attempt for token in run.token_ids]


def handed_over_after(sampling: Sampling, num_delivered: int, answer: list[int]) -> list[int]:
    """The same, through a prefill and a decode engine."""
    prefill, prefill_runner = fake_engine(16, role="prefill")
    decode, decode_runner = fake_engine(16)
    spec = resumed(sampling, answer[:num_delivered], "prefill")
    decode.reserve(resumed(sampling, answer[:num_delivered], "decode"))
    prefill.add(spec)
    outputs = run_to_end(prefill)
    [(_, block_ids, _)] = decode.step().reserved
    [(_, run)] = [sealed for output in outputs for sealed in output.sealed]
    held = prefill.sequences[spec.work.attempt].block_table
    decode_runner.kv[list(block_ids)] = prefill_runner.kv[list(held)]
    assert decode.adopt(spec.work.attempt, TokenRun(*spec.work.attempt, run.index, run.token_ids))
    return tokens_of_attempt(run_to_end(decode), spec.work.attempt)


@pytest.mark.parametrize("name", SAMPLINGS)
def test_an_undisturbed_answer_is_the_definitions(name: str) -> None:
    answer = by_definition(SAMPLINGS[name])
    assert answer_after(SAMPLINGS[name], 0, answer) == answer


@pytest.mark.parametrize("name", SAMPLINGS)
def test_each_setting_matters(name: str) -> None:
    sampling = SAMPLINGS[name]
    plain = Sampling(24, sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed)
    assert by_definition(sampling) != by_definition(plain)


@pytest.mark.parametrize("name", SAMPLINGS)
@pytest.mark.parametrize("num_delivered", [1, 2, 9, 22])
def test_a_retry_goes_on_as_if_nothing_had_happened(name: str, num_delivered: int) -> None:
    answer = by_definition(SAMPLINGS[name])
    assert answer_after(SAMPLINGS[name], num_delivered, answer) == answer[num_delivered:]


@pytest.mark.parametrize("name", SAMPLINGS)
@pytest.mark.parametrize("num_delivered", [0, 7])
def test_a_hand_over_goes_on_as_if_nothing_had_happened(name: str, num_delivered: int) -> None:
    answer = by_definition(SAMPLINGS[name])
    assert handed_over_after(SAMPLINGS[name], num_delivered, answer) == answer[num_delivered:]


def test_preempted_sequences_keep_their_counts() -> None:
    engine, _ = fake_engine(12, budget=12)
    specs = [
        make_spec(str(index), make_prompt(9, index), SAMPLINGS[name])
        for index, name in enumerate(PENALISED)
    ]
    for spec in specs:
        engine.add(spec)
    outputs = run_to_end(engine)
    assert engine.counters.preemptions > 0
    for spec in specs:
        expected = answer_alone(
            spec.work.token_ids, len(spec.work.token_ids), spec.work.sampling, 64
        )
        assert tokens_of(outputs, spec.work.attempt) == expected


def _from_the_resumed_prompt(
    sampling: Sampling, token_ids: tuple[int, ...], num_prompt_tokens: int
) -> TokenCounts | None:
    del num_prompt_tokens
    return counts_for(sampling, token_ids, len(token_ids))


def test_counting_from_the_resumed_prompt_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """num_prompt_tokens says where the output begins, not where the attempt does."""
    monkeypatch.setattr(sequence, "counts_for", _from_the_resumed_prompt)
    for name in ("presence", "frequency-greedy", "all"):
        answer = by_definition(SAMPLINGS[name])
        assert answer_after(SAMPLINGS[name], 0, answer) == answer
        assert answer_after(SAMPLINGS[name], 9, answer) != answer[9:]


def test_a_token_1_that_is_not_counted_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def append(self: Sequence, token_id: int) -> None:
        self.token_ids.append(token_id)
        if self.counts is not None and self.num_output_tokens > 1:
            self.counts.append(token_id)

    monkeypatch.setattr(Sequence, "append", append)
    answers = {name: by_definition(SAMPLINGS[name]) for name in PENALISED}
    assert any(
        handed_over_after(SAMPLINGS[name], 0, answers[name]) != answers[name] for name in answers
    )
