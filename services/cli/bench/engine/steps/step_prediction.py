"""How well an engine predicts its own steps, in traffic that changes all the time.

Every phase of some steps has a number of sequences and a pace of arrival of its own, and prompts of
all lengths come and go: decode steps of few and many rows over short and long contexts, chunks
alone, and both in one step.
"""

import math
import random
from dataclasses import dataclass, replace

from services.cli.bench.engine.baton_subject import BatonSubject
from services.cli.bench.engine.figures.figure import Figure
from services.cli.bench.engine.figures.known import Known
from services.cli.bench.engine.workload import RandomPrompts
from shared.engine.running.held_out_error import NUM_RECENT, HeldOutError
from shared.engine.running.step_size import StepSize
from shared.engine.running.step_time import StepTime
from shared.errors import BatonError

SEED = 5
PHASE_STEPS = 32
SHORTEST_PROMPT, LONGEST_ANSWER = 64, 256
PACES = (1, 4, 64)
"""sequences that arrive before one step"""
MAX_SHARE_OF_KV = 0.9
MAX_STEPS_PER_ERROR = 20
"""of which some are not timed; fewer are a fault"""
ON_GPU, ON_CPU = Known(5.0, 5.0, name="the goal"), Known(10.0, 10.0, name="the goal")


@dataclass(frozen=True)
class StepPredictionCell:
    """Steps until `num_errors` predictions were compared with the times that were measured."""

    num_sequences: int
    """at most, at once"""
    longest_prompt: int
    num_errors: int
    known: Known
    name: str = "step-time"
    estimate_s: float = 30.0

    @classmethod
    def of(cls, device_type: str, longest: int) -> "StepPredictionCell":
        """`longest`: tokens of the model's longest sequence."""
        if device_type == "cpu":
            return cls(8, min(256, longest // 2), 2 * NUM_RECENT, ON_CPU)
        return cls(256, min(8192, longest // 2), 2 * NUM_RECENT, ON_GPU)

    @property
    def num_answer(self) -> int:
        """Tokens of the longest answer."""
        return min(LONGEST_ANSWER, self.longest_prompt)

    @property
    def longest(self) -> int:
        return self.longest_prompt + self.num_answer

    def quick(self) -> "StepPredictionCell":
        return replace(self, num_errors=NUM_RECENT, estimate_s=self.estimate_s / 4)


class WatchedStepTime(StepTime):
    """Keeps the errors of each kind of step apart, those of the first half left out."""

    def __init__(self, fresh: StepTime, num_errors: int) -> None:
        super().__init__(fresh.costs)
        self._num_left_out = num_errors // 2
        self.by_kind = {"decode": HeldOutError(), "chunk": HeldOutError(), "mixed": HeldOutError()}

    def note(self, size: StepSize, seconds_s: float) -> float:
        counts = self.error.count >= self._num_left_out
        predicted_s = super().note(size, seconds_s)
        if counts:
            self.by_kind[_kind(size)].note(predicted_s, seconds_s)
        return predicted_s


def step_prediction_figure(
    cell: StepPredictionCell, subject: BatonSubject, model: str, prompts: RandomPrompts
) -> Figure:
    """The error, and the costs that were fitted. BatonError if steps cannot be timed here."""
    clock = subject.engine.step_clock
    watched = WatchedStepTime(clock.model, cell.num_errors)
    clock.model = watched
    clock.warm()
    _run(cell, subject, prompts)
    by_kind = watched.by_kind.items()
    return Figure(
        goal="P15",
        model=model,
        cell=cell.name,
        value=100 * watched.error.p90,
        unit="%",
        text=f"how far off the times of steps were predicted, p90 of the last {NUM_RECENT}: up to "
        f"{cell.num_sequences} sequences with prompts of up to {cell.longest_prompt} tokens",
        known=cell.known,
        more={
            **{
                f"{name.removesuffix('_s')}_us": float(f"{1e6 * cost:.5g}")
                for name, cost in watched.costs._asdict().items()
            },
            **{f"{kind}_p90_percent": round(100 * error.p90, 2) for kind, error in by_kind},
            **{f"num_{kind}_steps": error.count for kind, error in by_kind},
        },
    )


def _run(cell: StepPredictionCell, subject: BatonSubject, prompts: RandomPrompts) -> None:
    engine, error = subject.engine, subject.engine.step_clock.model.error
    source = random.Random(SEED)  # noqa: S311 (nothing secret)
    for number in range(MAX_STEPS_PER_ERROR * cell.num_errors):
        if number % PHASE_STEPS == 0:
            wanted = _between(source, 1, cell.num_sequences)
            pace = source.choice(PACES)
            for attempt in list(engine.sequences)[wanted:]:
                engine.abort(attempt)
        for _ in range(min(pace, wanted - len(engine.sequences))):
            _arrive(cell, subject, prompts, source)
        engine.step()
        if error.count >= cell.num_errors:
            break
    else:
        raise BatonError(f"of {number + 1} steps only {error.count} could be timed")
    for attempt in list(engine.sequences):
        engine.abort(attempt)
    while engine.has_work:
        engine.step()


def _arrive(
    cell: StepPredictionCell, subject: BatonSubject, prompts: RandomPrompts, source: random.Random
) -> None:
    """One more sequence, if its KV fits."""
    num_prompt = _between(source, min(SHORTEST_PROMPT, cell.longest_prompt), cell.longest_prompt)
    num_answer = _between(source, 1, cell.num_answer)
    held = sum(one.work.num_prompt_tokens for one in subject.engine.sequences.values())
    held += len(subject.engine.sequences) * cell.num_answer
    if held + num_prompt + num_answer < MAX_SHARE_OF_KV * subject.num_kv_tokens:
        subject.add(prompts.equal(1, num_prompt, num_answer))


def _between(source: random.Random, least: int, most: int) -> int:
    """All orders of magnitude are as likely."""
    return round(math.exp(source.uniform(math.log(least), math.log(most))))


def _kind(size: StepSize) -> str:
    if not size.num_chunk_tokens:
        return "decode"
    return "mixed" if size.num_rows else "chunk"
