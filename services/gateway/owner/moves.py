"""The requests of a decode worker that drains go on at another, with their KV.

Each moves by an epoch of its own: the worker that decodes it becomes its prefill worker. The prefix
cache there has all full blocks, so it computes the few tokens after them, answers with the next
token and hands over like any prefill worker. A few move at a time; the others decode meanwhile. The
first one moves alone: it waits until its pool is mapped, which takes 0.3 s between GPUs.
Where nobody can go on with them they stay until the worker's drain limit
(`shared.worker.node.Node.leave`).
"""

from services.gateway.owner.links.worker_link import WorkerLink
from services.gateway.owner.live_request import LiveRequest
from services.gateway.owner.machine.request_machine import RequestMachine
from services.gateway.owner.placement.placer import Placer
from services.gateway.owner.requests import Requests
from shared.clock import Clock

MAX_MOVES = 4
"""from one worker at a time: as many as keep its pulls busy"""
NEAR_END = 16
"""tokens that are not worth a move; the last one may be on its way already"""
LOOK_S = 0.02
"""between two looks at all requests for those that may move"""


class Moves:
    """Called on the event loop, after each frame of a worker that gives away what it has."""

    def __init__(self, requests: Requests, placer: Placer, clock: Clock) -> None:
        self._requests = requests
        self._placer = placer
        self._clock = clock

    def start(self, worker: WorkerLink) -> None:
        """Move what may move from there now, the shortest first."""
        now_s = self._clock.monotonic_s()
        if now_s - worker.looked_at_s < LOOK_S:
            return
        worker.looked_at_s = now_s
        source, live = worker.incarnation, self._requests.all()
        moving = [one for one in live if _is_moving(one.machine, source)]
        most = MAX_MOVES if worker.has_given else 1
        num_blocks = sum(one.num_blocks for one in moving)
        staying = [one for one in live if _stays(one, source)]
        for one in sorted(staying, key=lambda one: one.num_tokens):
            num_blocks += one.num_blocks
            if len(moving) >= most or not self._placer.may_move(one, source, num_blocks):
                return
            with self._requests.isolated(one):
                self._requests.execute(one, one.machine.move())
            moving.append(one)


def _stays(live: LiveRequest, source: str) -> bool:
    """It is decoded there, for some time to come, and would kill nobody elsewhere."""
    if live.machine.strikes.crashes.any:
        return False
    num_left = live.work.sampling.max_tokens - len(live.machine.token_ids)
    return num_left > NEAR_END and live.machine.decodes_at(source)


def _is_moving(machine: RequestMachine, source: str) -> bool:
    """It is being handed over by that worker."""
    is_source = machine.mode == "prefill" and machine.prefill_incarnation == source
    return is_source and machine.holds(source)
