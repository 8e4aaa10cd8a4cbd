"""A worker that computes prompts and decodes them, simulated step by step.

    request -> blocks -> prompt, in the order of `prompt_order` -> token 1 -> a token a step -> end

A step computes a token of each sequence that runs; what is left of `step_tokens` goes to chunks of
prompts, as the engine does, and the step lasts as long as the worker's costs say for all of it. A
request takes the KV blocks of its prompt and answer before its prompt begins, first come first
served. Steps without a chunk are counted from one join or leave to the next, as in decode workers.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from heapq import heappop, heappush
from math import ceil, sqrt

from services.autoscaler.view import WorkerView as SeenWorker
from services.simulator.prefill_worker import ROOM_STEPS
from services.simulator.request import Request
from services.simulator.timeline import Timeline
from services.simulator.unstarted import Unstarted
from services.simulator.worker_kind import WorkerKind
from shared.engine.scheduling.prompt_order import PromptOrder


class MixedWorker:
    """`on_ended` is called with each request that had its last token, then `on_room` if another may
    come."""

    def __init__(
        self,
        incarnation: str,
        kind: WorkerKind,
        timeline: Timeline,
        on_ended: Callable[[Request], None],
        on_room: Callable[[], None],
    ) -> None:
        self.kind = kind
        self.began_s = timeline.now_s
        self.busy_s = 0.0
        """computed so far in steps with a chunk, one that runs included as a whole"""
        self._timeline = timeline
        self._on_ended = on_ended
        self._on_room = on_room
        self._waiting: deque[Request] = deque()
        """that have no blocks, as they came"""
        self._writing: list[Request] = []
        """whose prompts have blocks and are computed"""
        self._running: list[tuple[int, int, Request]] = []
        """heap of (step it ends with, tie, sequence)"""
        self._num_joined = 0
        self._order = PromptOrder(kind.step_tokens)
        self._unstarted = Unstarted(ROOM_STEPS * kind.step_tokens)
        self._steps = 0.0
        """done so far, if one had run since the beginning"""
        self._context = 0.0
        """tokens of all that run"""
        self._counted_s = timeline.now_s
        """until when the steps are counted"""
        self._wake = 0
        """number of the latest plan to wake up; an older one is void"""
        self._chunks: list[tuple[Request, int]] = []
        """of the step that runs; none: it only decodes"""
        self.routed = kind.routed(incarnation, "decode", self._unstarted.room)

    @property
    def is_empty(self) -> bool:
        return not (self._waiting or self._writing or self._running)

    @property
    def used(self) -> float:
        """Share of its blocks."""
        return 1 - self.routed.spare_blocks / self.kind.num_blocks

    def take(self, request: Request) -> None:
        """Compute its prompt when its turn comes, and decode it."""
        request.turn = self._order.arrive(request.num_left)
        self._waiting.append(request)
        self._unstarted.add(request)
        self.routed.queued_tokens += request.num_left
        self.routed.queued_s += request.seconds(self.kind.costs, request.num_left)
        self._note_room()
        if not self._chunks:
            self._count_steps()
            self._plan()

    def seen(self, *, is_draining: bool) -> SeenWorker:
        """As it registers itself."""
        age_s = self._timeline.now_s - self.began_s
        seen = self.kind.seen(self.routed, age_s, is_draining=is_draining)
        return replace(seen, num_attempts=self.routed.num_sequences)

    def _plan(self) -> None:
        """What is next: the end of the step that decodes, where a prompt can go on, or of the one
        with which a sequence ends."""
        self._wake += 1
        wake = self._wake
        if self._can_compute():
            step = ceil(self._steps) if self._running else self._steps
        elif self._running:
            step = self._running[0][0]
        else:
            return
        takes_s = self._seconds(step - self._steps) if self._running else 0.0
        self._timeline.after(takes_s, lambda: self._go_on(wake, step))

    def _go_on(self, wake: int, step: float) -> None:
        """Steps without a chunk are done up to `step`."""
        if wake != self._wake:
            return
        self._count_steps(to=step)
        ended = self._leave()
        self._next()
        self._tell(ended)

    def _next(self) -> None:
        """A step ends: what is next."""
        self._admit()
        if self._writing:
            self._begin_step()
        else:
            self._plan()
        self._note_room()

    def _can_compute(self) -> bool:
        waits = bool(self._waiting) and self._blocks(self._waiting[0]) <= self.routed.spare_blocks
        return waits or bool(self._writing)

    def _admit(self) -> None:
        routed = self.routed
        while self._waiting and self._blocks(self._waiting[0]) <= routed.spare_blocks:
            request = self._waiting.popleft()
            routed.spare_blocks -= self._blocks(request)
            self._writing.append(request)

    def _begin_step(self) -> None:
        costs, budget = self.kind.costs, self.kind.step_tokens - len(self._running)
        budget = max(self.kind.block_size, budget)
        takes_s = self._per_step()[0]
        for request in sorted(self._writing, key=self._bucket):
            num_tokens = min(request.num_left, budget)
            takes_s += request.seconds(costs, num_tokens)
            if request.num_left == request.num_tokens:
                self._unstarted.begin(request)
            self._chunks.append((request, num_tokens))
            budget -= num_tokens
            if not budget:
                break
        self.busy_s += takes_s
        self._timeline.after(takes_s, self._end_step)

    def _end_step(self) -> None:
        self._count_steps(to=self._steps + 1)
        ended = self._leave()
        for request, num_tokens in self._chunks:
            self.routed.queued_s -= request.seconds(self.kind.costs, num_tokens)
            self.routed.queued_tokens -= num_tokens
            request.num_left -= num_tokens
            if not request.num_left:
                request.computed_s = request.joined_s = self._timeline.now_s
                if not self._join(request):
                    ended.append(request)
        self._writing = [request for request in self._writing if request.num_left]
        if not self.routed.queued_tokens:
            self.routed.queued_s = 0.0  # the sum of what was added and taken away is nearly that
        self._chunks = []
        self._next()
        self._tell(ended)

    def _join(self, request: Request) -> bool:
        """Whether there is more than the token that came with the prompt."""
        request.num_steps = max(0, request.arrival.num_output_tokens - 1)
        if not request.num_steps:
            self._end(request)
            return False
        last = round(self._steps) + request.num_steps
        heappush(self._running, (last, self._num_joined, request))
        self._num_joined += 1
        self._context += request.arrival.num_prompt_tokens
        return True

    def _leave(self) -> list[Request]:
        ended = []
        while self._running and self._running[0][0] <= self._steps:
            request = heappop(self._running)[2]
            self._context -= request.arrival.num_prompt_tokens + request.num_steps
            self._end(request)
            ended.append(request)
        return ended

    def _end(self, request: Request) -> None:
        request.ended_s = self._timeline.now_s
        self.routed.spare_blocks += self._blocks(request)

    def _tell(self, ended: list[Request]) -> None:
        for request in ended:
            self._on_ended(request)
        self._on_room()

    def _note_room(self) -> None:
        routed = self.routed
        routed.idle, routed.room = self._unstarted.is_empty, self._unstarted.room
        routed.num_sequences = len(self._waiting) + len(self._writing) + len(self._running)

    def _per_step(self) -> tuple[float, float]:
        """Seconds of the next step's decoding, and half of what each makes the next one longer."""
        return self.kind.decoding_s(len(self._running), self._context)

    def _seconds(self, num_steps: float) -> float:
        step_s, grow_s = self._per_step()
        return num_steps * (step_s + grow_s * num_steps)

    def _count_steps(self, to: float | None = None) -> None:
        """Those since the last event. `to`: it is known how many were done by now."""
        passed_s = self._timeline.now_s - self._counted_s
        self._counted_s = self._timeline.now_s
        if to is None and self._running:
            step_s, grow_s = self._per_step()
            to = self._steps + 2 * passed_s / (step_s + sqrt(step_s**2 + 4 * grow_s * passed_s))
        if to is not None:
            self._context += (to - self._steps) * len(self._running)
            self._steps = to

    def _blocks(self, request: Request) -> int:
        return self.kind.blocks_of(request.arrival)

    def _bucket(self, request: Request) -> int:
        return self._order.bucket_of(request.turn)
