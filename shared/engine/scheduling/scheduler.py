"""Which tokens the next step computes. Pure decisions: no tensor, no clock, no I/O.

Decoding sequences go first, one token each; what is left of the token budget goes to prompts, in
chunks that end on block boundaries except the last (R15), in the order of prompt_order.py.

One queue, by rank (priority, then arrival), feeds both kinds of admission (a prompt to compute
here, a reservation for KV that arrives): its head gets all blocks of its known tokens at once or
everybody waits (R17), so no two sequences wait for each other's half. A prompt is admitted when a
step reaches it, or one behind it: such as begin alike and arrive together find each other's blocks.

Where blocks run short, kv_pressure.py says what is done. A decoding sequence that finds no block
takes one from another (giving_way.py): mode full goes back to the queue and is computed again, mode
decode is handed back. So does the head of the queue that finds no block or place, from sequences of
a later priority. A sequence that was preempted MAX_PREEMPTIONS times is next admitted only with
every block it can ever need, and then keeps them; so preemptions are bounded and each admitted
sequence ends. Mode prefill is never preempted.

A step computes a sequence that is to be computed alone, or all others, in turn (turns.py). Then no
step may be decided while another runs.

A step may be decided while the one before it still runs. What that one computes counts as
computed, the tokens it samples as known; a sequence whose last token is among them waits. Where
it `must_preempt`, the step in flight must be booked first: nobody is preempted while it runs.
"""

from bisect import insort

from shared.engine.scheduling.batch import ScheduledSequence
from shared.engine.scheduling.block_growth import is_full, num_spare_blocks, num_wanted_blocks
from shared.engine.scheduling.block_pool import BlockPool
from shared.engine.scheduling.block_table import (
    cached_blocks,
    drop_blocks,
    num_missing,
    take_blocks,
)
from shared.engine.scheduling.giving_way import enough_of, givers, victim_of
from shared.engine.scheduling.kv_pressure import num_blocks_to_admit, takes_whole
from shared.engine.scheduling.light_steps import LightSteps
from shared.engine.scheduling.prompt_order import PromptOrder, PromptReach
from shared.engine.scheduling.scheduled_batch import ScheduledBatch
from shared.engine.scheduling.sequence import Sequence, SequenceState, rank_of
from shared.engine.scheduling.turns import Turns
from shared.errors import SettingsError
from shared.settings.groups import KVPressure


class Scheduler:
    """Owns the queue and the running sequences of one engine."""

    def __init__(
        self,
        pool: BlockPool,
        *,
        max_num_batched_tokens: int,
        max_num_seqs: int,
        max_model_len: int,
        on_kv_pressure: KVPressure = "preempt",
    ) -> None:
        least = max_num_seqs - 1 + pool.block_size
        if max_num_batched_tokens < least:
            raise SettingsError(
                f"max_num_batched_tokens {max_num_batched_tokens} is below {least}: "
                f"{max_num_seqs - 1} decoding sequences and one block of a prompt"
            )
        self.pool = pool
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_num_seqs = max_num_seqs
        self.max_model_len = max_model_len
        self.on_kv_pressure = on_kv_pressure
        self.waiting: list[Sequence] = []
        """by rank"""
        self.running: list[Sequence] = []
        """by rank: prompts being computed and decoding sequences"""
        self.reserved: list[Sequence] = []
        """hold their blocks, their KV is on its way"""
        self._waiting_prompts: list[Sequence] = []
        """those in the queue that are to be computed here"""
        self._prompt_order = PromptOrder(max_num_batched_tokens)
        self.turns = Turns()
        self._light_steps = LightSteps()

    def add(self, sequence: Sequence) -> None:
        """Queue the youngest sequence."""
        insort(self.waiting, sequence, key=rank_of)
        if sequence.spec.mode != "decode":
            num_cached = len(cached_blocks(self.pool, sequence)) * self.pool.block_size
            num_tokens = max(1, len(sequence.token_ids) - num_cached)
            sequence.turn = self._prompt_order.arrive(num_tokens)
            self._waiting_prompts.append(sequence)

    def adopt(self, sequence: Sequence) -> None:
        """The KV of a reserved sequence is here: it decodes from the next step on, if unverified
        for that step only."""
        self.reserved.remove(sequence)
        self._run(sequence)

    def park(self, sequence: Sequence) -> None:
        """Stop running a sequence; its blocks stay."""
        self.running.remove(sequence)
        self.turns.leave(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence in any state and give back its blocks."""
        for queue in (self.waiting, self._waiting_prompts, self.running, self.reserved):
            if sequence in queue:
                queue.remove(sequence)
        self.turns.leave(sequence)
        drop_blocks(self.pool, sequence)
        sequence.state = SequenceState.FINISHED

    @property
    def must_preempt(self) -> bool:
        """The next step would have to take a block, or a place, from a sequence that has it."""
        return self._lacks_blocks or bool(self._in_the_way())

    @property
    def _lacks_blocks(self) -> bool:
        if self.pool.num_available >= len(self.running):
            return False  # a sequence wants one block at most
        wanted = num_wanted_blocks(self.running, self.max_model_len, self.pool.block_size)
        return wanted > self.pool.num_available

    def schedule(self) -> ScheduledBatch:
        """Decide one step and take the blocks for it."""
        batch = ScheduledBatch(self.max_num_batched_tokens)
        for sequence in self._in_the_way():
            self._preempt(sequence, batch)
        for alone in self.turns.next():
            batch.alone = alone
            self._schedule_decodes(batch)
            self._admit(batch)
            self._schedule_chunks(batch)
            if batch.items:
                return batch
        batch.alone = None
        return batch

    def release_sources(self, batch: ScheduledBatch) -> None:
        """The step runs: its copies are its first work, so whatever else is started may write to
        their sources."""
        for copy in batch.copies:
            self.pool.free((copy.src,))

    def _schedule_decodes(self, batch: ScheduledBatch) -> None:
        for sequence in self.turns.parts(self.running, batch.alone):
            if sequence.state is SequenceState.VERIFIED:
                sequence.state = SequenceState.DECODE
            if sequence.state is not SequenceState.DECODE:
                continue
            if sequence.unverified and sequence.num_in_flight_tokens:
                continue
            if sequence.ends_in_flight(self.max_model_len) or not self._grow(sequence, batch):
                continue
            start = sequence.num_scheduled_tokens
            batch.items.append(ScheduledSequence(sequence, start, 1, True, False))
            batch.budget -= 1

    def _grow(self, sequence: Sequence, batch: ScheduledBatch) -> bool:
        """Make room for the next token; False if the sequence itself had to give way."""
        if not is_full(sequence, self.pool.block_size):
            return True
        while not self.pool.num_available:
            victim = victim_of(sequence, self.running, self.pool)
            self._preempt(victim, batch)
            if victim is sequence:
                return False
        sequence.block_table.extend(self.pool.allocate(1))
        return True

    def _in_the_way(self) -> list[Sequence]:
        """Those without which the head of the queue could be admitted, if it cannot be now."""
        if not self.waiting or not (found := givers(self.waiting[0], self.running)):
            return []
        head, num_spare = self.waiting[0], num_spare_blocks(self.running, self.reserved)
        num_lacking = num_missing(self.pool, head, self._num_blocks(head), num_spare)
        return enough_of(found, self.pool, self._num_places, num_lacking)

    def _preempt(self, sequence: Sequence, batch: ScheduledBatch) -> None:
        if sequence.spec.mode == "decode":
            self.remove(sequence)
            batch.handed_back.append(sequence)
            return
        self.park(sequence)
        drop_blocks(self.pool, sequence)
        sequence.state = SequenceState.WAITING
        sequence.num_preemptions += 1
        insort(self.waiting, sequence, key=rank_of)
        self._waiting_prompts.append(sequence)
        batch.preempted.append(sequence)

    def _schedule_chunks(self, batch: ScheduledBatch) -> None:
        parts = self.turns.parts(self.running, batch.alone)
        self._light_steps.begin(alone=batch.alone is not None)
        for sequence in self._prompt_order.in_order(filter(_is_writing, parts)):
            if not self._light_steps.leave_out(sequence):
                self._schedule_chunk(sequence, batch)

    def _schedule_chunk(self, sequence: Sequence, batch: ScheduledBatch) -> None:
        start = sequence.num_scheduled_tokens
        num_tokens = len(sequence.token_ids) - start
        samples = num_tokens <= batch.budget
        if not samples:
            num_tokens = batch.budget - (start + batch.budget) % self.pool.block_size
        if num_tokens > 0:
            batch.items.append(ScheduledSequence(sequence, start, num_tokens, samples, True))
            batch.scores |= sequence.scores_prompt
            batch.budget -= num_tokens
        self._light_steps.note(sequence, ends=samples)

    def _admit(self, batch: ScheduledBatch) -> None:
        """Admit from the head of the queue while blocks and places last, prompts as long as this
        step reaches one that waits."""
        if not self.waiting or self._num_places <= 0:
            return
        batch.num_spare_blocks = num_spare_blocks(self.running, self.reserved)
        writing = filter(_is_writing, self.running)
        reach = PromptReach(self._prompt_order, self._waiting_prompts, writing)
        while self.waiting and self._num_places > 0:
            sequence = self.waiting[0]
            reserves = sequence.spec.mode == "decode"
            if not reserves and batch.budget - reach.num_before() < self.pool.block_size:
                return
            if not self._take_blocks(sequence, batch):
                return
            self.waiting.pop(0)
            if reserves:
                sequence.state = SequenceState.RESERVED
                self.reserved.append(sequence)
                batch.reserved.append(sequence)
            else:
                sequence.state = SequenceState.WRITING
                self._waiting_prompts.remove(sequence)
                self._run(sequence)
                reach.admit(sequence)

    def _run(self, sequence: Sequence) -> None:
        insort(self.running, sequence, key=rank_of)
        self.turns.enter(sequence)

    @property
    def _num_places(self) -> int:
        return self.max_num_seqs - len(self.running) - len(self.reserved)

    def _take_blocks(self, sequence: Sequence, batch: ScheduledBatch) -> bool:
        num_blocks, num_spare = self._num_blocks(sequence), batch.num_spare_blocks
        taken = take_blocks(self.pool, sequence, num_blocks, num_spare)
        if taken is None:
            return False
        sequence.whole = takes_whole(self.on_kv_pressure, sequence)
        batch.num_spare_blocks += sequence.spec.mode != "prefill" and not sequence.whole
        sequence.num_cached_tokens = taken.num_cached_blocks * self.pool.block_size
        if sequence.spec.mode == "decode":
            return True
        sequence.num_cached_tokens = min(sequence.num_cached_tokens, len(sequence.token_ids) - 1)
        sequence.num_computed_tokens = sequence.num_cached_tokens
        if taken.copy:
            batch.copies.append(taken.copy)
        if sequence.num_preemptions == 0:
            batch.started.append(sequence)
        return True

    def _num_blocks(self, sequence: Sequence) -> int:
        """To admit it."""
        policy, block_size = self.on_kv_pressure, self.pool.block_size
        return num_blocks_to_admit(policy, sequence, self.max_model_len, block_size)


def _is_writing(sequence: Sequence) -> bool:
    return sequence.state is SequenceState.WRITING
