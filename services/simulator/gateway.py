"""The gateway of a simulated cell: the product's router, and the line of what finds no worker."""

import random
from collections import deque
from collections.abc import Mapping, Sequence
from math import inf

from services.gateway.owner.placement.router import (
    Placement,
    Prompt,
    choose_decode,
    choose_placement,
    choose_worker,
)
from services.simulator.decode_worker import DecodeWorker
from services.simulator.line import Line
from services.simulator.mixed_worker import MixedWorker
from services.simulator.prefill_worker import PrefillWorker
from services.simulator.request import Request
from shared.queue.backlog import Waiting

NOBODY: Mapping[str, int] = {}
"""holds a prefix: prefix hits are part of a trace, not of the cell"""


class Gateway:
    """Sends each request to a prefill worker, and then to a decode worker where there are some; or
    to one that does both."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._takers: dict[str, PrefillWorker | MixedWorker] = {}
        """of prompts"""
        self._decode: dict[str, DecodeWorker] = {}
        self._placement: Placement | None = None
        self._line = Line()
        self._long_tokens = inf
        """a prompt of more is long; as those that take prompts now have it, or those before them"""
        self._computed: deque[Request] = deque()
        """prompts whose KV no decode worker can take"""

    @property
    def waiting(self) -> Waiting:
        return self._line.waiting

    @property
    def num_unsent(self) -> int:
        """Computed, and waiting for a decode worker to be there."""
        return len(self._computed)

    def serve_with(
        self, prefill: Sequence[PrefillWorker], decode: Sequence[DecodeWorker] | None
    ) -> None:
        """These take work from now on. `decode`: None: the cell only computes prompts."""
        self._take_with(prefill)
        self._decode = {worker.routed.incarnation: worker for worker in decode or ()}
        views = [worker.routed for worker in prefill]
        views += [worker.routed for worker in decode or ()]
        placement = choose_placement(views, "pd", prefill_seen=True)
        if not prefill:  # decode workers could do both; here they do not
            placement = None
        elif decode is not None and not decode:
            placement = Placement("prefill", "", [worker.routed for worker in prefill])
        self._placement = placement
        while self._decode and self._computed:
            self.hand_over(self._computed.popleft())
        self.place_waiting()

    def serve_with_mixed(self, workers: Sequence[MixedWorker]) -> None:
        """These take work from now on, and do all of it."""
        self._take_with(workers)
        views = [worker.routed for worker in workers]
        self._placement = choose_placement(views, "agg", prefill_seen=False)
        self.place_waiting()

    def arrive(self, request: Request) -> None:
        if self._line.join(request, is_long=request.num_tokens > self._long_tokens):
            self.place_waiting()

    def place_waiting(self) -> None:
        """First come, first placed, as far as there is room. A long prompt that finds no place lets
        short ones pass; the first of these that finds no room holds up the rest."""
        placement, short_only = self._placement, False
        while placement is not None and (first := self._line.first(short_only=short_only)):
            request, is_long = first
            prompt = Prompt(request.num_tokens, 1, NOBODY)
            route = choose_worker(placement, prompt, self._rng)
            if route is not None:
                self._line.leave(is_long=is_long)
                self._takers[route.incarnation].take(request)
            elif not is_long:
                return
            short_only |= route is None

    def _take_with(self, workers: Sequence[PrefillWorker | MixedWorker]) -> None:
        self._takers = {worker.routed.incarnation: worker for worker in workers}
        rooms = [worker.routed.room for worker in workers]
        self._long_tokens = max((room.long_tokens for room in rooms), default=self._long_tokens)

    def hand_over(self, request: Request) -> None:
        """Its prompt is computed: a decode worker goes on."""
        arrival = request.arrival
        prompt = Prompt(arrival.num_prompt_tokens + arrival.num_output_tokens, 16, NOBODY)
        views = [worker.routed for worker in self._decode.values()]
        chosen = choose_decode(views, prompt)
        if chosen is None:
            self._computed.append(request)
        else:
            self._decode[chosen].take(request)
