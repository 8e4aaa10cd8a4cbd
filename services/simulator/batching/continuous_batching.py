"""Continuous batching, decided by the engine's own scheduler (shared/engine/scheduling).

The scheduler, its block pool and its sequences are the product's; a step takes as long as its costs
say, and samples a token of no meaning for each sequence that the scheduler says samples one. What
is booked after a step is what `Engine._book` books of a sequence in mode full.
"""

from services.simulator.batching.request import Request
from services.simulator.batching.slots import Slots
from services.simulator.batching.step_cost import step_s
from services.simulator.timeline import Timeline
from shared.engine.scheduling.block_pool import BlockPool
from shared.engine.scheduling.scheduled_batch import ScheduledBatch
from shared.engine.scheduling.scheduler import Scheduler
from shared.engine.scheduling.sequence import Sequence, SequenceSpec, SequenceState
from shared.kv.layout import num_blocks_for
from shared.message_parts.step_costs import StepCosts
from shared.protocol import Attempt, Sampling, Work
from shared.settings.groups import KVPressure

BLOCK_SIZE = 16
TOKEN = 0
"""stands for all tokens: no decision looks at one"""


class ContinuousBatching:
    """A device whose scheduler decides each step when the one before it has ended."""

    def __init__(
        self,
        scheduler: Scheduler,
        costs: StepCosts,
        timeline: Timeline,
    ) -> None:
        self.slots = Slots(scheduler.max_num_seqs)
        self.num_rows = 0
        """tokens computed so far, those of a preempted sequence each time"""
        self._scheduler = scheduler
        self._costs = costs
        self._timeline = timeline
        self._requests: dict[Sequence, Request] = {}
        """those that are not answered"""
        self._is_computing = False

    def take(self, request: Request) -> None:
        """It arrives now; a step that runs is not disturbed."""
        sequence = Sequence(_spec(request), request.number)
        self._requests[sequence] = request
        self._scheduler.add(sequence)
        if not self._is_computing:
            self._begin_step()

    def close(self) -> None:
        """Nobody waited for others."""

    def _begin_step(self) -> None:
        batch = self._scheduler.schedule()
        self._scheduler.release_sources(batch)
        self._hold_slots()
        self._is_computing = bool(batch.items)
        if not batch.items:
            return
        self.num_rows += sum(item.num_tokens for item in batch.items)
        decodes = [item.start + 1 for item in batch.items if not item.prefill]
        chunks = [(item.start, item.num_tokens) for item in batch.items if item.prefill]
        takes_s = step_s(self._costs, decodes, chunks)
        self._timeline.after(takes_s, lambda: self._end_step(batch))

    def _end_step(self, batch: ScheduledBatch) -> None:
        for sequence, start, num_tokens, samples, _ in batch.items:
            sequence.num_computed_tokens = start + num_tokens
            if samples:
                self._append(sequence)
        self._begin_step()

    def _append(self, sequence: Sequence) -> None:
        sequence.append(TOKEN)
        sequence.state = SequenceState.DECODE
        self._requests[sequence].tokens_s.append(self._timeline.now_s)
        if sequence.finish_reason(self._scheduler.max_model_len) is not None:
            self._scheduler.remove(sequence)
            del self._requests[sequence]

    def _hold_slots(self) -> None:
        running = [self._requests[sequence] for sequence in self._scheduler.running]
        self.slots.hold(running, self._timeline.now_s)


def scheduler_of(
    num_slots: int,
    step_tokens: int,
    longest: int,
    num_blocks: int | None = None,
    on_kv_pressure: KVPressure = "preempt",
) -> Scheduler:
    """The engine's, without a prefix cache. `num_blocks`: of its KV pool; default: as many as
    sequences of `longest` tokens in all places need, so that none is short of blocks, whatever
    `on_kv_pressure`. Nobody refuses here: `reject` is `queue`."""
    num_blocks = num_blocks or num_slots * num_blocks_for(longest, BLOCK_SIZE)
    pool = BlockPool(num_blocks, BLOCK_SIZE, [0] * num_blocks, prefix_cache=False)
    return Scheduler(
        pool,
        max_num_batched_tokens=step_tokens,
        max_num_seqs=num_slots,
        max_model_len=longest + 1,
        on_kv_pressure=on_kv_pressure,
    )


def _spec(request: Request) -> SequenceSpec:
    """Without names of blocks, which only a prefix cache looks at."""
    sampling = Sampling(max_tokens=request.num_output, ignore_eos=True)
    attempt = Attempt(str(request.number), 0)
    tokens = (TOKEN,) * request.num_prompt
    return SequenceSpec(Work(attempt, tokens, request.num_prompt, b"", sampling), (), "full", "agg")
