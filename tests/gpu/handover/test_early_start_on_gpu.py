"""A step that begins ahead of the verdict, and what the host exercises before it, on a GPU: with
captured steps, and with one in flight."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from shared.engine.engine import Engine
from shared.engine.handover.output import StepOutput
from shared.engine.scheduling.sequence import SequenceSpec
from shared.protocol import Attempt, Sampling, TokenRun
from shared.settings.groups import Settings
from tests.support.models.built_engine import built_engine
from tests.support.models.tiny_model import TINY, write_checkpoint
from tests.support.oracles.agg_answers import Answer, agg_answers, make_specs
from tests.support.settings import settings_with

PROMPTS = [[(7 * step + length) % 131 for step in range(length)] for length in (15, 16, 90)]
BLOCK_SIZE = 16
GREEDY = Sampling(max_tokens=9, temperature=0.0, ignore_eos=True, logprobs=0)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    torch.set_float32_matmul_precision("highest")
    write_checkpoint(tmp_path, TINY)
    return settings_with(
        model=str(tmp_path),
        device="cuda",
        dtype="float32",
        kv_blocks=40,
        block_size=BLOCK_SIZE,
    )


def steps(engine: Engine) -> list[StepOutput]:
    outputs = []
    while engine.has_work:
        outputs.append(engine.step())
    return outputs


def handed_over(
    prefill: Engine, decode: Engine, spec: SequenceSpec, outputs: list[StepOutput]
) -> TokenRun:
    """Token 1, once the KV of the prompt is in blocks that decode reserved for it; what decode says
    meanwhile goes to `outputs`."""
    prefill.add(replace(spec, mode="prefill", reason=""))
    [run] = [run for output in steps(prefill) for _, run in output.sealed]
    table = prefill.sequences[spec.work.attempt].block_table
    decode.reserve(replace(spec, mode="decode", reason=""))
    outputs.append(decode.step())
    [(_, blocks, num_present)] = outputs[-1].reserved
    torch.cuda.synchronize()
    theirs, ours = list(table[num_present:]), list(blocks[num_present:])
    decode.kv_pool.tensor[ours] = prefill.kv_pool.tensor[theirs]
    torch.cuda.synchronize()
    prefill.release(spec.work.attempt)
    return run


def answer_of(outputs: list[StepOutput], attempt: Attempt) -> Answer:
    answer: Answer = []
    for run in (run for output in outputs for run in output.tokens if run.attempt == attempt):
        del answer[run.index :]
        answer.extend(zip(run.token_ids, run.logprobs, strict=True))
    return answer


@pytest.mark.parametrize("num_steps", [0, 1, 3])
def test_an_answer_that_began_ahead_of_the_verdict_is_that_of_one_engine(
    num_steps: int, settings: Settings
) -> None:
    specs = make_specs(PROMPTS, GREEDY, BLOCK_SIZE)
    expected = agg_answers(built_engine(settings, "decode"), specs)
    prefill, decode = built_engine(settings, "prefill"), built_engine(settings, "decode")
    outputs: list[StepOutput] = []
    for spec in specs:  # each joins those before it
        run = handed_over(prefill, decode, spec, outputs)
        decode.near(run.attempt)
        decode.next_launch.exercise_due_s()
        assert decode.begin(run.attempt, run.token_ids[0])
        before = [decode.step() for _ in range(num_steps)]
        assert not answer_of(before, run.attempt), "nothing is told before the verdict"
        outputs += before
        assert decode.adopt(run.attempt, run)
        outputs.append(decode.step())
    outputs += steps(decode)
    assert decode.counters.early_starts == len(specs)
    for spec in specs:
        assert answer_of(outputs, spec.work.attempt) == expected[spec.work.attempt]


def test_what_the_host_exercises_changes_no_answer(settings: Settings) -> None:
    """Nor does what is in the prefix cache the second time change what it does."""
    specs = make_specs(PROMPTS, GREEDY, BLOCK_SIZE)
    rested, engine = built_engine(settings, "decode"), built_engine(settings, "decode")
    engine.next_launch.exercise()
    for _ in range(2):
        assert agg_answers(engine, specs) == agg_answers(rested, specs)
        for _ in range(5):  # more than the sampler has buffers
            engine.next_launch.exercise()
