"""The step loop of one worker: schedule, run, sample, update.

Where the runner runs ahead, a call of `step` starts one step and then books the one before it
(shared/engine/running/pipeline.py). If a sequence would have to be preempted, the call only books
the step in flight.

Modes of a sequence
    full     add -> WRITING -> DECODE -> finished                    prompt and answer here
    prefill  add -> WRITING -> HELD -> release, or ended at token 1  KV is handed over
    decode   reserve -> RESERVED -> adopt -> VERIFIED -> DECODE -> finished, or handed back
             (`begin` may come before `adopt`: shared/engine/handover/adoptions.py)

A sequence with a grammar is COMPILING before it is queued; in mode decode the grammar compiles
while the KV arrives.

Everything is called from one thread. The engine does not know what reads the blocks of a HELD
sequence or writes those of a RESERVED one: it frees them on release() or abort() only, and a caller
aborts a RESERVED sequence once the transfer into it has stopped (R7, R18).
"""

from collections.abc import Callable
from typing import Literal

from shared.engine.counters import EngineCounters
from shared.engine.handover.adoptions import MAX_COMMITTED, Adoptions, check_token_1
from shared.engine.handover.hand_overs import announce, show_first_tokens
from shared.engine.handover.kv_pool import KVPool
from shared.engine.handover.output import StepOutput
from shared.engine.running.gauges import Gauges
from shared.engine.running.model_runner import Runner
from shared.engine.running.next_launch import NextLaunch
from shared.engine.running.pipeline import StartedStep, StepPipeline
from shared.engine.running.step_clock import StepClock
from shared.engine.running.trial import try_steps
from shared.engine.sampling.sampled_tokens import SampledToken, TokenSampler
from shared.engine.scheduling.admission import check_fits, check_room
from shared.engine.scheduling.block_pool import BlockPool
from shared.engine.scheduling.block_table import commit_blocks
from shared.engine.scheduling.grammars import Grammars
from shared.engine.scheduling.load import EngineLoad
from shared.engine.scheduling.prompt_rows import scored_pieces
from shared.engine.scheduling.scheduled_batch import ScheduledBatch
from shared.engine.scheduling.scheduler import Scheduler
from shared.engine.scheduling.sequence import Sequence, SequenceSpec, SequenceState
from shared.engine.scheduling.step_marks import StepMarks
from shared.errors import GrammarError, OffGrammarError, RequestError
from shared.kv.layout import num_blocks_for
from shared.kv.memory import KVMemory
from shared.protocol import Attempt, TokenRun
from shared.settings.profiles import StepSize


class Engine:
    """Advances every sequence of one worker, one step at a time."""

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        sampler: TokenSampler,
        kv_pool: KVPool,
        role: Literal["prefill", "decode"],
        grammars: Grammars | None = None,
    ) -> None:
        """`kv_pool`: whose blocks are scheduled. Without `grammars` those that need one fail."""
        self.kv_pool = kv_pool
        self.role = role
        self.grammars = grammars or Grammars(None)
        self.counters = EngineCounters()
        self.sequences: dict[Attempt, Sequence] = {}
        self._runner = runner
        self._scheduler = scheduler
        self._pool: BlockPool = scheduler.pool
        self.step_clock = StepClock(runner.device, on_decode_step=self.counters.count_decode_step)
        self.gauges = Gauges(self.step_clock.figures, scheduler)
        self._pipeline = StepPipeline(runner, sampler, self._pool.block_size, self.step_clock)
        self.on_scheduled: Callable[[StepOutput], None] = lambda output: None
        """called between schedule and run with what scheduling alone decided (started, reserved,
        handed_back, pieces), so that a hand-over can overlap with the step"""
        self._num_arrived = 0
        self._adoptions = Adoptions(scheduler, kv_pool)
        self.next_launch = NextLaunch(self._pipeline, lambda: self._adoptions.any_near)
        self.alone: Attempt | None = None
        """whose step is in flight, where that computes nothing else because it must not"""
        self._stirred = False
        """something outside a step changed what the next step can do"""

    def add(self, spec: SequenceSpec) -> bool:
        """Queue a prompt to compute here; False if the attempt is known already.

        RequestError if it can never fit, OutOfBlocksError if it would have to wait for blocks and
        --on-kv-pressure is reject.
        """
        assert spec.mode != "decode", "a decode sequence is reserved, not added"
        if self.role == "decode" and spec.mode == "full" and not spec.reason:
            raise RequestError("a decode worker keeps no prompt without a reason", status=500)
        return self._queue(spec)

    def reserve(self, spec: SequenceSpec) -> bool:
        """Queue for all blocks of a prompt whose KV will arrive; False if known already.

        A later StepOutput.reserved names the blocks. RequestError if it can never fit.
        """
        assert spec.mode == "decode", "only a decode sequence reserves"
        return self._queue(spec)

    def adopt(self, attempt: Attempt, run: TokenRun) -> bool:
        """The KV of a reserved attempt is in its blocks, verified; decode on from token 1.

        False, and nothing done, if the attempt is not waiting for its KV; ProtocolError if the
        run is not the one token that continues it.
        """
        sequence = self.sequences.get(attempt)
        if sequence is None or not sequence.awaits_kv:
            return False
        check_token_1(sequence, run)
        sequence.repeat = run
        if sequence.work.sampling.grammar:
            self.grammars.hold(sequence)
        else:
            self._adopt(sequence, run)
        return True

    def near(self, attempt: Attempt) -> None:
        """The KV of a reserved attempt is nearly complete; nothing happens for any other."""
        sequence = self.sequences.get(attempt)
        if sequence is not None:
            self._adoptions.near(sequence)
            self._pipeline.near()

    def begin(self, attempt: Attempt, token_id: int) -> bool:
        """All KV of a reserved attempt is in its blocks, not verified yet, and this is its token 1:
        a step may be computed from it until `adopt` or `abort` comes. False where it will not."""
        sequence = self.sequences.get(attempt)
        begins = sequence is not None and self._adoptions.begin(sequence, token_id)
        self.counters.early_starts += begins
        self._stirred |= begins
        return begins

    def release(self, attempt: Attempt) -> None:
        """Step 9: the reader of a HELD attempt is done. `Scheduler.remove` gives its blocks back to
        the pool (`drop_blocks`), where full ones stay in the prefix cache."""
        sequence = self.sequences.get(attempt)
        if sequence is not None and sequence.state is SequenceState.HELD:
            self._forget(sequence)

    def abort(self, attempt: Attempt) -> None:
        """Drop an attempt in any state; an unknown one is fine."""
        sequence = self.sequences.get(attempt)
        if sequence is not None:
            self._forget(sequence)

    def try_out(self) -> float:
        """Seconds of a prompt's token; before the first request. Steps are predicted from it."""
        assert not self._num_arrived
        num_tokens = min(self.step_size.num_tokens, self.max_model_len)
        trial = try_steps(self._runner, num_tokens, self._pool.block_size)
        self.step_clock.start_from(trial.costs)
        return trial.prefill_token_s

    def meet(self) -> None:
        """Returns once every rank of the model answers. To be called where there is no work."""
        self._runner.meet()

    def rehearse(self) -> None:
        """Make all that a later step would wait for, before the first request: a decode graph of
        each size, which takes an H100 0.4 s for 23 of an 8B model."""
        assert not self._num_arrived
        while (batch := self._runner.rehearsal()) is not None:
            self._runner.run(batch)

    @property
    def step_size(self) -> StepSize:
        """Of the largest step."""
        return StepSize(self._scheduler.max_num_batched_tokens, self._scheduler.max_num_seqs)

    @property
    def max_model_len(self) -> int:
        """Tokens of the longest sequence this engine finishes, prompt included."""
        return self._scheduler.max_model_len

    @property
    def has_work(self) -> bool:
        """False: step() would do nothing until one of the calls above."""
        busy = bool(self._scheduler.running) or self.in_flight
        return busy or self._stirred or self.grammars.any_ready

    @property
    def in_flight(self) -> bool:
        """A step was started that the next call of step() books."""
        return self._pipeline.in_flight

    def step(self) -> StepOutput:
        """Steps 5 and 7: advance every sequence by one step; quick when there is nothing to do.

        Reports the step that it booked, which may be the one started by the call before."""
        output = StepOutput()
        self._resume(output)
        for sequence in self._adoptions.held_back():
            self._append(sequence, sequence.take_unbooked(), output)
        if output.tokens and not self._runner.runs_ahead:
            output.stored, output.removed = self._pool.drain_events()
            return output  # their tokens are not to wait for a step
        scheduler = self._scheduler
        if self.in_flight and (scheduler.must_preempt or scheduler.turns.any):
            done = self._pipeline.drain()  # reported before a sequence is preempted
        else:
            self._pipeline.begin()
            scheduled, marks = self._schedule(output)
            done = self._pipeline.turn(scheduled, marks)
            scheduler.release_sources(scheduled)
        self._adoptions.commit()
        for step in done:
            self._book(step, output)
        output.stored, output.removed = self._pool.drain_events()
        self._stirred |= self._pool.has_events
        return output

    def load(self) -> EngineLoad:
        """How full this engine is."""
        model = self.step_clock.model
        return EngineLoad.of(self._scheduler, model.costs, model.error.p90)

    @property
    def memory(self) -> KVMemory:
        """What the io process of the worker sees of the pool."""
        return self.kv_pool.memory

    def cached_prefixes(self) -> list[tuple[bytes, int]]:
        """The (hash, depth) of blocks that are told, in the sense of StepOutput.stored."""
        return self._pool.cached_prefixes()

    def _queue(self, spec: SequenceSpec) -> bool:
        if spec.work.attempt in self.sequences:
            return False
        check_fits(spec, self._pool, self._scheduler.max_model_len)
        sequence = Sequence(spec, self._num_arrived)
        check_room(sequence, self.sequences.values(), self._scheduler)
        self._num_arrived += 1
        self.sequences[spec.work.attempt] = sequence
        if spec.work.sampling.grammar:
            self.grammars.start(sequence)
        if spec.work.sampling.grammar and spec.mode != "decode":
            sequence.state = SequenceState.COMPILING
            self.grammars.hold(sequence)
        else:
            self._scheduler.add(sequence)
            self._stirred = True
        return True

    def _adopt(self, sequence: Sequence, run: TokenRun) -> None:
        """GrammarError if token 1 is not in the sequence's grammar."""
        self._adoptions.adopt(sequence, run.token_ids[0])
        self._stirred = True

    def _resume(self, output: StepOutput) -> None:
        """Queue, or adopt, every sequence whose grammar is ready. A prompt with a grammar arrives
        only now, so that nobody waits behind it."""
        for sequence, error in self.grammars.ready():
            if error is not None:
                self._fail(sequence, error, output)
            elif sequence.repeat is None:
                sequence.state = SequenceState.WAITING
                sequence.arrival = self._num_arrived
                self._num_arrived += 1
                self._scheduler.add(sequence)
            else:
                try:
                    self._adopt(sequence, sequence.repeat)
                except GrammarError as problem:
                    self._fail(sequence, problem, output)

    def _fail(self, sequence: Sequence, error: GrammarError, output: StepOutput) -> None:
        """This sequence ends, the engine does not."""
        ended = output.failed if isinstance(error, OffGrammarError) else output.refused
        ended.append((sequence.attempt, str(error)))
        self.grammars.renew(sequence.work.sampling.grammar)
        self._forget(sequence)

    def _forget(self, sequence: Sequence) -> None:
        self.grammars.forget(sequence.attempt)
        self._adoptions.forget(sequence)
        self.kv_pool.marks.forget(sequence.attempt)
        self._scheduler.remove(sequence)
        del self.sequences[sequence.attempt]
        self._stirred = True

    def _schedule(self, output: StepOutput) -> tuple[ScheduledBatch, StepMarks | None]:
        """Decide a step, and tell what scheduling alone decided; the marks it is to make."""
        scheduled = self._scheduler.schedule()
        self._stirred = scheduled.changes_next
        counters = self.counters
        for sequence in scheduled.started:
            if self.role == "prefill" or sequence.spec.mode == "full":  # what moves finds its own
                counters.prefix_query_tokens += len(sequence.token_ids)
                counters.prefix_hit_tokens += sequence.num_cached_tokens
            output.started.append((sequence.attempt, sequence.num_cached_tokens))
        for sequence in scheduled.reserved:
            self.kv_pool.marks.reserve(sequence.attempt)
            num_present = sequence.num_cached_tokens // (size := self._pool.block_size)
            blocks = tuple(sequence.block_table[: num_blocks_for(len(sequence.token_ids), size)])
            output.reserved.append((sequence.attempt, blocks, num_present))
        for sequence in scheduled.handed_back:
            del self.sequences[sequence.attempt]
            output.handed_back.append(sequence.attempt)
        counters.preemptions += len(scheduled.preempted)
        counters.handed_back += len(scheduled.handed_back)
        marks = announce(
            self._pool, self.kv_pool.marks, scheduled.items, self.max_model_len, output
        )
        self.alone = output.alone = scheduled.alone.attempt if scheduled.alone else None
        self.on_scheduled(output)
        counters.steps += bool(scheduled.items)
        for sequence, _, num_tokens, _, prefill in scheduled.items:
            if prefill:
                local = self.role == "decode" and sequence.spec.mode == "full"
                counters.count_prompt(num_tokens, sequence.spec.reason if local else "")
        return scheduled, marks

    def _book(self, step: StartedStep, output: StepOutput) -> None:
        """Book what the step computed, then the sampled tokens, in the order of the batch."""
        self._stirred = True
        tokens = iter(self._pipeline.wait(step))
        self.alone = None
        computed = [(item, next(tokens) if item.samples else None) for item in step.items]
        sampled = [(item.sequence, token.token_id) for item, token in computed if token]
        show_first_tokens(self._pool, self.memory, sampled)
        if step.marks is not None:
            self.kv_pool.marks.end_step(step.marks.number)
        self.step_clock.note(step.timed)
        if step.scored is not None:
            output.scored += scored_pieces(step.spans, step.scored)
        for (sequence, start, num_tokens, samples, prefill), token in computed:
            if sequence.state is SequenceState.FINISHED:  # while the step ran
                continue
            sequence.num_in_flight_tokens -= num_tokens
            sequence.num_awaited_tokens -= samples
            if sequence.unverified:
                sequence.unbooked = token
                self._adoptions.hold_back(sequence)
                continue
            if prefill:
                output.chunks.append((sequence.attempt, num_tokens))
            sequence.num_computed_tokens = start + num_tokens
            commit_blocks(self._pool, sequence, None if prefill else MAX_COMMITTED)
            if token is not None:
                self._append(sequence, token, output)

    def _append(self, sequence: Sequence, token: SampledToken, output: StepOutput) -> None:
        """Add a sampled token and end, seal or continue the sequence."""
        index = sequence.num_output_tokens
        try:
            sequence.append(token.token_id)
        except GrammarError as error:
            self._fail(sequence, error, output)
            return
        reason = sequence.finish_reason(self._scheduler.max_model_len)
        self.counters.generated_tokens += 1
        logprobs = () if token.logprobs is None else (token.logprobs,)
        run = TokenRun(*sequence.attempt, index, (token.token_id,), logprobs, reason)
        output.tokens.append(sequence.told(run))
        if reason is not None:
            ended = output.ended if sequence.spec.mode == "prefill" else output.finished
            ended.append(sequence.attempt)
            self._forget(sequence)
        elif sequence.spec.mode == "prefill":
            self._scheduler.park(sequence)
            sequence.state = SequenceState.HELD
            output.sealed.append((sequence.attempt, run))
