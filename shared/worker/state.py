"""What a worker is and has: its incarnation, its attempts, its load, whether it drains."""

from dataclasses import replace
from typing import Literal

from shared.protocol import Load
from shared.worker.attempts import AttemptTable

Refusal = Literal["no_room", "incarnation", "draining", "too_long", "invalid"]


class WorkerState:
    """Facts the io process decides by. The engine's own numbers arrive with its reports."""

    def __init__(self, inc: str, room_limit_tokens: int, block_size: int) -> None:
        self.inc = inc
        self.block_size = block_size
        self.attempts = AttemptTable()
        self.draining = False
        self.counters: dict[str, int] = {}
        """totals by metric name, the engine's and this process's"""
        self._room_limit_tokens = room_limit_tokens
        self._engine_load = Load(0, 0, 0, 0, 0, 0, 0, 0)

    def note_engine(self, load: Load, counters: dict[str, int]) -> None:
        self._engine_load = load
        self.counters.update(counters)

    def count(self, name: str, amount: int = 1) -> None:
        self.counters[name] = self.counters.get(name, 0) + amount

    def load(self) -> Load:
        """The engine's last numbers, with the queue as this process counts it."""
        return replace(
            self._engine_load,
            room_tokens=max(0, self._room_limit_tokens - self.attempts.num_unstarted_tokens),
            queued_tokens=self.attempts.num_uncomputed_tokens,
            state="draining" if self.draining else "ready",
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
