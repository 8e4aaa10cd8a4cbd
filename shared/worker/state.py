"""What a worker is and has: its incarnation, its attempts, its load, whether it drains."""

from shared.clock import SystemClock
from shared.engine.scheduling.load import EngineLoad
from shared.kv.layout import KVLayout, num_blocks_for
from shared.protocol import Attempt, Incoming, Load, Refusal
from shared.queue.room import Room
from shared.transfer.traffic import Traffic
from shared.worker.attempts.places import Places
from shared.worker.attempts.table import AttemptTable
from shared.worker.attempts.usage import note_step
from shared.worker.channel import StepReport


class WorkerState:
    """Facts the io process decides by. The engine's own numbers arrive with its reports."""

    def __init__(
        self, incarnation: str, room_limit_tokens: int, layout: KVLayout, num_places: int = 0
    ) -> None:
        """`num_places`: sequences that it decodes together; 0: it decodes none."""
        self.incarnation = incarnation
        self.attempts = AttemptTable()
        self.leaving = False
        """for good"""
        self.asked_to_drain = False
        """by somebody who may take it back"""
        self.stalled = False
        """the engine answers nothing, nor does it compute"""
        self.alone: Attempt | None = None
        """that the engine computes now and no other, as it must"""
        self.counters: dict[str, int] = {}
        """totals by metric name, the engine's and this process's"""
        self.gauges: dict[str, float] = {}
        """the engine's, by metric name"""
        self.traffic = Traffic(SystemClock())
        """of hand-overs; a role with a transport puts that one's here"""
        self._layout = layout
        self._room_limit_tokens = room_limit_tokens
        self._places = Places(num_places)
        self._clock = SystemClock()
        self._engine_load = EngineLoad(0, 0, 0, 0, 0, 0)

    def note_engine(
        self, load: EngineLoad, counters: dict[str, int], gauges: dict[str, float] | None = None
    ) -> None:
        self._engine_load = load
        self.counters.update(counters)
        self.gauges = self.gauges if gauges is None else gauges

    def note_step(self, report: StepReport) -> None:
        """What a step computed, and what its attempts used by that."""
        note_step(self.attempts, report, self._layout)
        self.attempts.note_chunks(report.chunks, report.end_ns)

    def count(self, name: str, amount: int = 1) -> None:
        self.counters[name] = self.counters.get(name, 0) + amount

    def expect_hand_over(self, attempt: Attempt, num_blocks: int, source: str = "") -> None:
        """The KV of `num_blocks` blocks is to be handed over, to here if there is a source."""
        self.traffic.expect(attempt, num_blocks * self._layout.block_bytes, source)

    def num_blocks_for(self, num_tokens: int) -> int:
        return num_blocks_for(num_tokens, self._layout.block_size)

    @property
    def draining(self) -> bool:
        """It takes no new work."""
        return self.leaving or self.asked_to_drain

    @property
    def block_size(self) -> int:
        """Positions of one KV block."""
        return self._layout.block_size

    @property
    def queues(self) -> bool:
        """There is more work than runs: a sequence may have to wait for others."""
        return self._engine_load.waiting > 0 or self.attempts.num_uncomputed_tokens > 0

    @property
    def room_limit_tokens(self) -> int:
        """Of prompts that have not begun, of which one long one takes half."""
        return self._room_limit_tokens

    @property
    def room(self) -> Room:
        """For prompts that it cannot begin at once."""
        return Room.whole(self._room_limit_tokens).less(self.attempts.unstarted())

    def load(self) -> Load:
        """The engine's last numbers, and the queue as this process counts it."""
        token_bytes = self._layout.block_bytes // self._layout.block_size
        backlogs, engine, room = self.traffic.backlogs(), self._engine_load, self.room
        costs = engine.step_costs
        return Load(
            room_tokens=max(0, room.tokens),
            early_room_tokens=max(0, room.early_tokens),
            queued_tokens=self.attempts.num_uncomputed_tokens,
            running=engine.running,
            waiting=engine.waiting,
            total=engine.total,
            free=engine.free,
            cached=engine.cached,
            held=engine.held,
            state="draining" if self.draining else "ready",
            unpulled_tokens=sum(
                left.num_bytes // token_bytes for left in backlogs if not left.source
            ),
            incoming=tuple(
                Incoming(left.source, left.num_bytes // token_bytes, left.bytes_s / token_bytes)
                for left in backlogs
                if left.source
            ),
            unreserved_tokens=self.attempts.unreserved_tokens,
            step_costs=costs,
            step_error=engine.step_error,
            stalled=self.stalled,
            queued_s=self.attempts.queued_s(costs),
            place_s=self._places.wait_s(
                self.attempts, self._clock.monotonic_s(), costs.step_s + costs.row_s
            ),
            long_place=int(room.long_place),
        )

    def refusal(
        self, incarnation: str, num_tokens: int, *, new: bool = True, early: bool = True
    ) -> Refusal | None:
        """Why an attempt is not taken now; None to take it. `num_tokens`: prompt tokens to compute
        here. Where nothing waits any number is taken, so that the longest prompt is not refused
        forever. An attempt that takes the place of another of its request is not new. `early`:
        later ones take none of its room."""
        if incarnation != self.incarnation:
            return "incarnation"
        if not new:
            return None
        if self.draining:
            return "draining"
        if self.stalled:
            return "no_room"
        if num_tokens and not self.room.takes(num_tokens, early=early):
            return "no_room"
        return None
