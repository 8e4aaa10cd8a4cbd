"""A prefill worker, simulated step by step.

    prompts -> line, in the order of `prompt_order` -> steps of `step_tokens` -> computed

A step takes chunks from the front of the line until it is full, as the engine does, and lasts as
long as the worker's costs say. Its KV pool never fills: what is computed is handed over at once.
"""

from collections.abc import Callable
from dataclasses import replace

from services.autoscaler.view import WorkerView as SeenWorker
from services.simulator.request import Request
from services.simulator.timeline import Timeline
from services.simulator.unstarted import Unstarted
from services.simulator.worker_kind import WorkerKind
from shared.engine.scheduling.prompt_order import PromptOrder

ROOM_STEPS = 2
"""of prompts that have not begun, which a worker takes (`shared.worker.node`); the rest waits
where any worker can take it"""


class PrefillWorker:
    """`on_computed` is called with each prompt, then `on_room` if another may come."""

    def __init__(
        self,
        incarnation: str,
        kind: WorkerKind,
        timeline: Timeline,
        on_computed: Callable[[Request], None],
        on_room: Callable[[], None],
    ) -> None:
        self.kind = kind
        self.began_s = timeline.now_s
        self.busy_s = 0.0
        """computed so far, a step that runs included as a whole"""
        self._timeline = timeline
        self._on_computed = on_computed
        self._on_room = on_room
        self._line: list[Request] = []
        """what computes and what waits, as it came"""
        self._order = PromptOrder(kind.step_tokens)
        self._unstarted = Unstarted(ROOM_STEPS * kind.step_tokens)
        self._is_computing = False
        self.routed = kind.routed(incarnation, "prefill", self._unstarted.room)

    @property
    def is_empty(self) -> bool:
        return not self._line

    def take(self, request: Request) -> None:
        """Compute it when its turn comes."""
        request.turn = self._order.arrive(request.num_left)
        self._line.append(request)
        self._unstarted.add(request)
        self.routed.queued_tokens += request.num_left
        self.routed.queued_s += request.seconds(self.kind.costs, request.num_left)
        self._note_room()
        if not self._is_computing:
            self._begin_step()

    def seen(self, *, is_draining: bool) -> SeenWorker:
        """As it registers itself."""
        age_s = self._timeline.now_s - self.began_s
        seen = self.kind.seen(self.routed, age_s, is_draining=is_draining)
        return replace(seen, num_attempts=len(self._line))

    def _begin_step(self) -> None:
        costs, budget, takes_s = self.kind.costs, self.kind.step_tokens, self.kind.costs.step_s
        chunks: list[tuple[Request, int]] = []
        for request in sorted(self._line, key=self._bucket):
            num_tokens = min(request.num_left, budget)
            takes_s += request.seconds(costs, num_tokens)
            if request.num_left == request.num_tokens:
                self._unstarted.begin(request)
            chunks.append((request, num_tokens))
            budget -= num_tokens
            if not budget:
                break
        self._is_computing = True
        self.busy_s += takes_s
        self._note_room()
        self._timeline.after(takes_s, lambda: self._end_step(chunks))

    def _end_step(self, chunks: list[tuple[Request, int]]) -> None:
        computed = []
        for request, num_tokens in chunks:
            self.routed.queued_s -= request.seconds(self.kind.costs, num_tokens)
            self.routed.queued_tokens -= num_tokens
            request.num_left -= num_tokens
            if not request.num_left:
                request.computed_s = self._timeline.now_s
                computed.append(request)
        if computed:
            self._line = [request for request in self._line if request.num_left]
        if not self._line:
            self.routed.queued_s = 0.0  # the sum of what was added and taken away is nearly that
        self._is_computing = bool(self._line)
        if self._line:
            self._begin_step()
        for request in computed:
            self._on_computed(request)
        self._on_room()

    def _note_room(self) -> None:
        routed = self.routed
        routed.idle, routed.room = self._unstarted.is_empty, self._unstarted.room
        routed.num_sequences = len(self._line)

    def _bucket(self, request: Request) -> int:
        return self._order.bucket_of(request.turn)
