"""A decode worker, simulated from one join or leave to the next.

A sequence takes the KV blocks of its prompt and answer, first come first served, and waits while
they are not free. All that run compute one token in each step, so between two events the steps are
counted, not simulated: with `n` sequences whose contexts sum to `c`, `k` steps take

    k * (step_s + n * row_s + c * context_token_s) + k^2 * n * context_token_s / 2
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from heapq import heappop, heappush
from math import sqrt

from services.autoscaler.view import WorkerView as SeenWorker
from services.simulator.request import Request
from services.simulator.timeline import Timeline
from services.simulator.worker_kind import WorkerKind
from shared.queue.room import Room


class DecodeWorker:
    """`on_ended` is called with each sequence that had its last token."""

    def __init__(
        self,
        incarnation: str,
        kind: WorkerKind,
        timeline: Timeline,
        on_ended: Callable[[Request], None],
    ) -> None:
        self.kind = kind
        self.began_s = timeline.now_s
        self._timeline = timeline
        self._on_ended = on_ended
        self._running: list[tuple[float, int, Request]] = []
        """heap of (step it ends with, tie, sequence)"""
        self._line: deque[Request] = deque()
        """that wait for blocks"""
        self._steps = 0.0
        """done so far, if one had run since the beginning"""
        self._context = 0.0
        """tokens of all that run"""
        self._counted_s = timeline.now_s
        """until when the steps are counted"""
        self._wake = 0
        """number of the latest plan to wake up; an older one is void"""
        self._num_taken = 0
        self.routed = kind.routed(incarnation, "decode", Room.whole(kind.step_tokens))

    @property
    def is_empty(self) -> bool:
        return not (self._running or self._line)

    @property
    def used(self) -> float:
        """Share of its blocks."""
        return 1 - self.routed.spare_blocks / self.kind.num_blocks

    def take(self, request: Request) -> None:
        """Decode it as soon as it has blocks."""
        self._count_steps()
        self._line.append(request)
        self._admit()

    def seen(self, *, is_draining: bool) -> SeenWorker:
        """As it registers itself."""
        age_s = self._timeline.now_s - self.began_s
        seen = self.kind.seen(self.routed, age_s, is_draining=is_draining)
        num_tokens = sum(item.arrival.num_prompt_tokens for item in self._line)
        return replace(seen, num_unreserved_tokens=num_tokens)

    def _blocks(self, request: Request) -> int:
        return self.kind.blocks_of(request.arrival)

    def _admit(self) -> None:
        routed = self.routed
        while self._line and self._blocks(self._line[0]) <= routed.spare_blocks:
            request = self._line.popleft()
            routed.spare_blocks -= self._blocks(request)
            request.joined_s = self._timeline.now_s
            request.num_steps = max(1, request.arrival.num_output_tokens)
            last = self._steps + request.num_steps
            heappush(self._running, (last, self._num_taken, request))
            self._num_taken += 1
            self._context += request.arrival.num_prompt_tokens
        routed.num_sequences = len(self._running) + len(self._line)
        self._wake += 1
        if self._running:
            wake = self._wake
            num_steps = self._running[0][0] - self._steps
            self._timeline.after(self._seconds(num_steps), lambda: self._leave(wake))

    def _leave(self, wake: int) -> None:
        if wake != self._wake:
            return
        self._count_steps(to=self._running[0][0])
        ended = []
        while self._running and self._running[0][0] <= self._steps:
            request = heappop(self._running)[2]
            request.ended_s = self._timeline.now_s
            self._context -= request.arrival.num_prompt_tokens + request.num_steps
            self.routed.spare_blocks += self._blocks(request)
            ended.append(request)
        self._admit()
        for request in ended:
            self._on_ended(request)

    def _per_step(self) -> tuple[float, float]:
        """Seconds of the first step, and half of what each makes the next one longer."""
        return self.kind.decoding_s(len(self._running), self._context)

    def _seconds(self, num_steps: float) -> float:
        step_s, grow_s = self._per_step()
        return num_steps * (step_s + grow_s * num_steps)

    def _count_steps(self, to: float | None = None) -> None:
        """Those since the last event. `to`: it is known how many were done by now."""
        passed_s = self._timeline.now_s - self._counted_s
        self._counted_s = self._timeline.now_s
        if not self._running:
            return
        if to is None:
            step_s, grow_s = self._per_step()
            to = self._steps + 2 * passed_s / (step_s + sqrt(step_s**2 + 4 * grow_s * passed_s))
        self._context += (to - self._steps) * len(self._running)
        self._steps = to
