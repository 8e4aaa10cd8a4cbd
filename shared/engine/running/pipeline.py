"""Starts steps and hands each back once it is to be booked: where the runner runs ahead, one is
always in flight.

A turn starts one step and hands back the one before it, so that a device never waits for the host.
Step n + 1 is thus decided before the tokens of step n are known: their ids go from step to step on
the device, and a sequence that step n ended has been computed once more for nothing. A grammar must
see each token first, so while one runs a turn hands back the very step it started.
"""

from collections.abc import Sequence as Run
from dataclasses import dataclass, replace

from shared.clock import SystemClock
from shared.engine.running.launch_time import LaunchTime
from shared.engine.running.model_runner import Runner
from shared.engine.running.step_clock import StepClock, TimedStep
from shared.engine.sampling.prompt_scores import ScoredRows
from shared.engine.sampling.sample_row import SampleRow
from shared.engine.sampling.sampled_tokens import SampledToken, SampledTokens, TokenSampler
from shared.engine.scheduling.batch import HostBatch, ScheduledSequence, pack_batch
from shared.engine.scheduling.grammars import allowed_tokens
from shared.engine.scheduling.prompt_rows import ScoredSpan, score_plan, scored_spans
from shared.engine.scheduling.scheduled_batch import ScheduledBatch
from shared.engine.scheduling.sequence import Sequence, SequenceState
from shared.engine.scheduling.step_marks import StepMarks
from shared.engine.scheduling.token_rows import as_token_rows
from shared.protocol import Attempt, Sampling

_EXERCISED = SampleRow(Sampling(max_tokens=1, temperature=0.0), 0, 0)


@dataclass(frozen=True)
class StartedStep:
    """A step that was started and not booked yet."""

    items: Run[ScheduledSequence]
    batch: HostBatch
    tokens: SampledTokens
    rows: dict[Sequence, int]
    """which of the tokens is whose"""
    marks: StepMarks | None
    """of its layer groups, where somebody waits for them"""
    timed: TimedStep | None
    spans: Run[ScoredSpan] = ()
    scored: ScoredRows | None = None
    """of these spans; on the host once the tokens are"""


class StepPipeline:
    """At most one step in flight between two turns."""

    def __init__(
        self,
        runner: Runner,
        sampler: TokenSampler,
        block_size: int,
        clock: StepClock,
    ) -> None:
        """`clock`: times the steps."""
        self._runner = runner
        self._sampler = sampler
        self._block_size = block_size
        self._clock = clock
        self._in_flight: StartedStep | None = None
        self._first: Attempt | None = None
        """of the last step that was started"""
        self._launch_time = LaunchTime(SystemClock())

    @property
    def in_flight(self) -> bool:
        """A step was started that has not been handed back."""
        return self._in_flight is not None

    def due_s(self) -> float:
        """Seconds until the next turn had better come, if something is to join its step."""
        step = self._in_flight
        if step is None or step.tokens.ready():
            return 0.0
        return self._launch_time.due_s(self._clock.predict(step.batch))

    @property
    def computes_prompts(self) -> bool:
        """The step in flight does."""
        return self._in_flight is not None and self._in_flight.batch.shape.has_chunks

    def near(self) -> None:
        """Something to start arrives soon."""
        self._launch_time.near()

    def exercise_due_s(self) -> float | None:
        """Seconds until `exercise` had better come; None where it is of no use."""
        rests = self._runner.runs_ahead and not self.in_flight
        return self._launch_time.exercise_due_s() if rests else None

    def exercise(self) -> None:
        """Do the host's part of a small step without the step; nothing is in flight."""
        self._launch_time.exercise()
        logits = self._runner.exercise()
        if logits is not None:
            self._sampler.sample(logits, [_EXERCISED])

    def wait(self, step: StartedStep) -> list[SampledToken]:
        """The tokens of a step that was handed back; they are there once it has ended."""
        had_ended = step.tokens.ready()
        tokens = step.tokens.wait()
        took_s = step.timed.duration.seconds() if had_ended and step.timed else None
        self._launch_time.follow(took_s)
        return tokens

    def begin(self) -> None:
        """A step is decided from now on, for the next turn."""
        self._launch_time.begin()

    def turn(self, scheduled: ScheduledBatch, marks: StepMarks | None = None) -> list[StartedStep]:
        """Start this step if it computes anything, and make its marks; the steps to book now,
        oldest first."""
        started = self._start(scheduled, marks) if scheduled.items else None
        done = self.drain()
        self._in_flight = started
        if not self._runner.runs_ahead or _needs_its_tokens(scheduled.items):
            done += self.drain()
        return done

    def drain(self) -> list[StartedStep]:
        """The step in flight, if there is one; then there is none."""
        step, self._in_flight = self._in_flight, None
        return [] if step is None else [step]

    def _start(self, scheduled: ScheduledBatch, marks: StepMarks | None) -> StartedStep:
        """Run the model and sample."""
        items, before = scheduled.items, self._in_flight
        rows_ahead = before.rows if before else None
        batch = pack_batch(items, scheduled.copies, self._block_size, rows_ahead)
        spans = scored_spans(items) if scheduled.scores else ()
        if spans:
            batch = replace(batch, scores=score_plan(spans))
        batch = as_token_rows(batch, self._runner.whole_rows)
        previous = before.tokens.device_ids if before else None
        first = items[0].sequence.attempt
        self._clock.begin(batch, follows=before is not None or first == self._first)
        self._first = first
        if batch.shape.has_chunks:
            self._launch_time.reach(late=_is_over(before))
        logits = self._runner.run(batch, previous, marks.on_stored if marks else None)
        scored = self._runner.scorer.take().on_host() if spans else None
        if marks is not None:
            marks.finish()
        tokens = self._sampler.sample(logits, _sample_rows(items))
        timed = self._clock.end()
        if batch.shape.has_chunks:
            self._launch_time.end(self._clock.predict(batch))
        else:  # it is launched as a whole
            self._launch_time.reach(late=_is_over(before))
            self._launch_time.end()
        rows: dict[Sequence, int] = {}
        for sequence, _, num_tokens, samples, _ in items:
            sequence.num_in_flight_tokens += num_tokens
            if samples:
                rows[sequence] = len(rows)
                sequence.num_awaited_tokens += 1
                if sequence.spec.mode != "prefill":
                    sequence.state = SequenceState.DECODE
        return StartedStep(items, batch, tokens, rows, marks, timed, spans, scored)


def _is_over(step: StartedStep | None) -> bool:
    return step is not None and step.tokens.ready()


def _sample_rows(items: Run[ScheduledSequence]) -> list[SampleRow]:
    return [
        SampleRow(
            sequence.work.sampling,
            sequence.num_tokens_ahead,
            sequence.num_tokens_ahead - sequence.work.num_prompt_tokens,
            sequence.bias,
            sequence.counts,
            allowed_tokens(sequence),
        )
        for sequence, _, _, samples, _ in items
        if samples
    ]


def _needs_its_tokens(items: Run[ScheduledSequence]) -> bool:
    """The next step cannot be decided before these tokens are known."""
    return any(item.sequence.grammar is not None for item in items)
