"""What a worker is and has: its incarnation, its attempts, its load, whether it drains."""

from dataclasses import replace
from typing import Literal

from shared.clock import SystemClock
from shared.kv_layout import KVLayout, num_blocks_for
from shared.protocol import Attempt, Incoming, Load
from shared.transfer.traffic import Traffic
from shared.worker.attempts import AttemptTable

Refusal = Literal["no_room", "incarnation", "draining", "too_long", "invalid"]


class WorkerState:
    """Facts the io process decides by. The engine's own numbers arrive with its reports."""

    def __init__(self, inc: str, room_limit_tokens: int, layout: KVLayout) -> None:
        self.inc = inc
        self.attempts = AttemptTable()
        self.draining = False
        self.counters: dict[str, int] = {}
        """totals by metric name, the engine's and this process's"""
        self.traffic = Traffic(SystemClock())
        """of hand-overs; a role with a transport puts that one's here"""
        self._layout = layout
        self._room_limit_tokens = room_limit_tokens
        self._engine_load = Load(0, 0, 0, 0, 0, 0, 0, 0)

    def note_engine(self, load: Load, counters: dict[str, int]) -> None:
        self._engine_load = load
        self.counters.update(counters)

    def count(self, name: str, amount: int = 1) -> None:
        self.counters[name] = self.counters.get(name, 0) + amount

    def expect_hand_over(self, attempt: Attempt, num_blocks: int, source: str = "") -> None:
        """The KV of so many blocks is to be handed over, to here if there is a source."""
        self.traffic.expect(attempt, num_blocks * self._layout.block_bytes, source)

    def num_blocks_for(self, num_tokens: int) -> int:
        return num_blocks_for(num_tokens, self._layout.block_size)

    @property
    def block_size(self) -> int:
        """Positions of one KV block."""
        return self._layout.block_size

    @property
    def queues(self) -> bool:
        """There is more work than runs: a sequence may have to wait for others."""
        return self._engine_load.waiting > 0 or self.attempts.num_uncomputed_tokens > 0

    def load(self) -> Load:
        """The engine's last numbers, with the queue as this process counts it."""
        token_bytes = self._layout.block_bytes // self._layout.block_size
        backlogs = self.traffic.backlogs()
        return replace(
            self._engine_load,
            room_tokens=max(0, self._room_limit_tokens - self.attempts.num_unstarted_tokens),
            queued_tokens=self.attempts.num_uncomputed_tokens,
            state="draining" if self.draining else "ready",
            unpulled_tokens=sum(
                left.num_bytes // token_bytes for left in backlogs if not left.source
            ),
            incoming=tuple(
                Incoming(left.source, left.num_bytes // token_bytes, left.bytes_s / token_bytes)
                for left in backlogs
                if left.source
            ),
        )

    def refusal(self, inc: str, num_tokens: int) -> Refusal | None:
        """Why a prompt of this length is not taken now; None to take it. An idle worker takes
        any length, so that the longest prompt is never refused for ever."""
        if inc != self.inc:
            return "incarnation"
        if self.draining:
            return "draining"
        waiting = self.attempts.num_unstarted_tokens
        if waiting and waiting + num_tokens > self._room_limit_tokens:
            return "no_room"
        return None
