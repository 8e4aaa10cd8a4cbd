"""The requests of a decode worker that drains go on at another, with their KV.

Each moves by an epoch of its own: the worker that decodes it becomes its prefill worker. The prefix
cache there has all full blocks, so it computes the few tokens after them, answers with the next
token and hands over like any prefill worker. A few move at a time; the others decode meanwhile.
Where nobody can go on with them they stay until the worker's drain limit
(`shared.worker.node.Node.leave`).
"""

from services.gateway.owner.links.worker_link import WorkerLink
from services.gateway.owner.machine.request_machine import RequestMachine
from services.gateway.owner.placement.placer import Placer
from services.gateway.owner.requests import Requests

MAX_MOVES = 4
"""from one worker at a time: as many as keep its pulls busy"""


class Moves:
    """Called on the event loop, after each frame of a worker that gives away what it has."""

    def __init__(self, requests: Requests, placer: Placer) -> None:
        self._requests = requests
        self._placer = placer

    def start(self, worker: WorkerLink) -> None:
        """Move what may move from there now, the shortest first."""
        source, live = worker.incarnation, self._requests.all()
        num_moving = sum(_is_moving(one.machine, source) for one in live)
        staying = [one for one in live if one.machine.decodes_at(source)]
        for one in sorted(staying, key=lambda one: one.num_tokens):
            if num_moving >= MAX_MOVES or not self._placer.may_move(one, source):
                return
            with self._requests.isolated(one):
                self._requests.execute(one, one.machine.move())
            num_moving += 1


def _is_moving(machine: RequestMachine, source: str) -> bool:
    """It is being handed over by that worker."""
    is_source = machine.mode == "prefill" and machine.prefill_incarnation == source
    return is_source and machine.holds(source)
