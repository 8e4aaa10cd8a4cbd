"""What one engine alone answers: the oracle of answers whose KV was handed over.

Needs only what the engine needs, so that tests/gpu can use it too.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from shared.engine.engine import Engine
from shared.engine.scheduling.sequence import SequenceSpec
from shared.protocol import Attempt, Sampling, TokenLogprobs, TokenRun, Work

ROOT = bytes(32)
Answer = list[tuple[int, TokenLogprobs]]


def make_specs(
    prompts: Iterable[list[int]], sampling: Sampling, block_size: int
) -> list[SequenceSpec]:
    """Specs for one engine alone, named by their number."""
    return [
        SequenceSpec.of(
            Work(
                Attempt(str(number), 0),
                tuple(prompt),
                len(prompt),
                ROOT,
                replace(sampling, seed=number),
            ),
            block_size,
            "full",
            "agg",
        )
        for number, prompt in enumerate(prompts)
    ]


def agg_answers(engine: Engine, specs: Iterable[SequenceSpec]) -> Mapping[Attempt, Answer]:
    """What one engine alone answers, all at once."""
    answers: dict[Attempt, Answer] = {}
    for spec in specs:
        engine.add(spec)
    while engine.has_work:
        for run in engine.step().tokens:
            _note(answers, run)
    return answers


def _note(answers: dict[Attempt, Answer], run: TokenRun) -> None:
    """Apply by index; what is said again must be the same."""
    answer = answers.setdefault(run.attempt, [])
    said = list(zip(run.token_ids, run.logprobs, strict=True))
    overlap = len(answer) - run.index
    assert overlap >= 0 and answer[run.index :] == said[:overlap]
    answer.extend(said[overlap:])
