"""KV between the engine's pool and the workers that it is handed over to, or comes from.

    prefill   announce() before a step, what it completes -> marks say when -> the seal
    decode    reserve() -> KV verified -> adopt()

Others read the pool, and fill reserved blocks, while steps run. A GPU's pool that nobody maps is
staged: its blocks are copied alongside the steps (shared/engine/handover/staging.py), in the order
they are asked for, and reported once they are copied. A copy that fails ends the engine: later
attempts would take its blocks for copied.
"""

from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Run
from concurrent.futures import Future
from dataclasses import dataclass

import torch

from shared.engine.handover.marks import Marks
from shared.engine.handover.output import StepOutput
from shared.engine.handover.pieces import next_pieces
from shared.engine.handover.shared_pool import SharedPool
from shared.engine.handover.staging import HostStaging
from shared.engine.scheduling.batch import ScheduledSequence
from shared.engine.scheduling.block_pool import BlockPool
from shared.engine.scheduling.sequence import Sequence
from shared.engine.scheduling.step_marks import StepMarks
from shared.kv.memory import Piece
from shared.protocol import Attempt, TokenRun


@dataclass(frozen=True)
class _Departure:
    """What is reported once it is copied, after all that departed before it."""

    sequence: Sequence
    what: Piece | TokenRun
    """the run seals"""
    copied: "Future[None] | None" = None


class HandOvers:
    """Called by the step loop; `on_ready` is called from a thread."""

    def __init__(
        self,
        pool: BlockPool,
        marks: Marks,
        staging: HostStaging | None = None,
        shared: SharedPool | None = None,
    ) -> None:
        """`staging`: what is handed over goes through host memory. `shared`: the pool that others
        map instead."""
        self.marks = marks
        self.shared = shared
        self._pool = pool
        self._staging = staging
        self._departing: deque[_Departure] = deque()
        self._arriving: dict[Attempt, tuple[Sequence, list[Future[None]]]] = {}
        self.on_ready: Callable[[], None] = lambda: None
        """something was copied; runs in a thread"""

    @property
    def any_ready(self) -> bool:
        """`report` or `adopted` would tell something."""
        departing = bool(self._departing) and _is_copied(self._departing[0])
        return departing or any(copies[-1].done() for _, copies in self._arriving.values())

    @property
    def in_flight(self) -> bool:
        """Something is being copied."""
        return bool(self._departing or self._arriving)

    def mark(self) -> torch.cuda.Event | None:
        """The steps that were started so far, for `publish`."""
        return self._staging.mark() if self._staging is not None else None

    def announce(
        self, items: Run[ScheduledSequence], max_model_len: int, output: StepOutput
    ) -> StepMarks | None:
        """Report the blocks that a step is about to complete, for readers that watch its marks:
        the caller makes these while it starts the step. None: nobody needs any."""
        if self._staging is not None:
            return None
        computed: list[tuple[Attempt, Piece]] = []
        for sequence, start, num_tokens, samples, _ in items:
            length = len(sequence.token_ids) + 1
            if sequence.spec.mode != "prefill" or sequence.ends_at(length, max_model_len):
                continue
            cached, new = next_pieces(self._pool, sequence, start + num_tokens, last=samples)
            if cached is not None:
                output.pieces.append((sequence.attempt, cached, None))
            if new is not None:
                computed.append((sequence.attempt, new))
        if not computed:
            return None
        marks = self.marks.begin_step()
        output.pieces.extend((attempt, piece, marks.number) for attempt, piece in computed)
        return marks

    def publish(self, sequence: Sequence, mark: torch.cuda.Event | None, *, last: bool) -> None:
        """Where it is staged: report what the steps up to `mark` completed, once it lies where
        readers see it (R11). `last`: its prompt is complete."""
        if self._staging is None:
            return
        for piece in next_pieces(self._pool, sequence, sequence.num_computed_tokens, last=last):
            if piece is None:
                continue
            num_told = 0
            for part in self._staging.parts(piece.block_ids):
                generations = piece.generations[num_told : num_told + len(part)]
                some = Piece(piece.first_block + num_told, tuple(part), generations)
                copied = self._watched(self._staging.publish(part, mark))
                self._departing.append(_Departure(sequence, some, copied))
                num_told += len(part)

    def seal(self, sequence: Sequence, run: TokenRun) -> None:
        """Report the seal after the last piece."""
        self._departing.append(_Departure(sequence, run))

    def report(self, output: StepOutput) -> None:
        """Tell what is copied by now."""
        while self._departing and _is_copied(self._departing[0]):
            departure = self._departing.popleft()
            if departure.copied is not None:
                departure.copied.result()
            if isinstance(departure.what, Piece):
                output.staged.append((departure.sequence.attempt, departure.what))
            else:
                output.sealed.append((departure.sequence.attempt, departure.what))

    def adopt(self, sequence: Sequence) -> bool:
        """Bring the verified KV of a reserved sequence into the pool. True: it is there;
        False: `adopted` returns the sequence later."""
        self.marks.forget(sequence.attempt)
        num_present = sequence.num_cached_tokens // self._pool.block_size
        missing = sequence.block_table[num_present:]
        if self._staging is None or not missing:
            return True
        mark = self._staging.mark()  # a step in flight may write what its blocks were before
        copies = [
            self._watched(self._staging.adopt(part, mark)) for part in self._staging.parts(missing)
        ]
        self._arriving[sequence.attempt] = sequence, copies
        return False

    def adopted(self) -> list[Sequence]:
        """Sequences whose KV is in the pool by now; each once."""
        done = [item for item in self._arriving.values() if item[1][-1].done()]
        for sequence, copies in done:
            del self._arriving[sequence.attempt]
            for copied in copies:
                copied.result()
        return [sequence for sequence, _ in done]

    def forget(self, sequence: Sequence) -> None:
        """The sequence is about to lose its blocks: returns once no copy touches them; outgoing
        copies finish in order, so this waits for earlier ones too."""
        self.marks.forget(sequence.attempt)
        _, arriving = self._arriving.pop(sequence.attempt, (sequence, []))
        copies = [copied for copied in arriving if not copied.cancel()]
        others: deque[_Departure] = deque()
        for departure in self._departing:
            if departure.sequence is not sequence:
                others.append(departure)
            elif departure.copied is not None:
                copies.append(departure.copied)
        self._departing = others
        # What departs is copied all the same: others may count on its first blocks.
        for copied in copies:
            copied.result()

    def retire(self, block_ids: Iterable[int]) -> None:
        """Nobody refers any more to these blocks that were in transfer."""
        if self._staging is not None:
            self._staging.retire(block_ids)

    def close(self) -> None:
        """Begin no copy that waits for its turn; the process would not end before it."""
        if self._staging is not None:
            self._staging.close()

    def _watched(self, copied: "Future[None]") -> "Future[None]":
        copied.add_done_callback(lambda _: self.on_ready())
        return copied


def _is_copied(departure: _Departure) -> bool:
    return departure.copied is None or departure.copied.done()
