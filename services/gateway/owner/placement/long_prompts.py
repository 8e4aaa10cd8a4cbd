"""Which prompts are long to the workers that take prompts now. Pure; `shared.queue.room`."""

import math

from services.gateway.owner.placement.router import Placement


def long_tokens(placement: Placement | None) -> float:
    """A prompt of more is long to all of them. Where their steps differ, the places of those with
    the largest are taken by no shorter one, so it waits for its turn at these."""
    workers = placement.workers if placement is not None else ()
    return max((worker.room.long_tokens for worker in workers), default=math.inf)
