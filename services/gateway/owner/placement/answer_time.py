"""How long a request takes from when a worker takes it. Pure."""

from collections.abc import Mapping, Sequence
from math import inf
from typing import NamedTuple

from services.gateway.owner.links.worker_view import WorkerView
from services.gateway.owner.live_request import LiveRequest
from services.gateway.owner.placement.router import Placement, Route
from shared.errors import OverloadedError
from shared.protocol import DEFAULT_PRIORITY

TRUST = 0.5
"""of what a trial or a fit says: the device was cold, or something else ran"""
SLACK = 1.2
"""times what it is expected to take is left for a request: it may wait, or decode, longer"""
TOO_LATE = "the request's time would be over before its answer can be whole"

Workers = Sequence[WorkerView]


class AnswerTime(NamedTuple):
    """Until an answer can be whole, as it goes now. In seconds."""

    wait_s: float
    """for a place in a batch"""
    own_s: float
    """to compute what the request itself asks for"""

    def refusal(self, left_s: float, line_s: float) -> OverloadedError | None:
        """Of a request that has so long, and waits so long in the line first; None: it is in time.
        It may come back when others are done; where its own tokens take too long no wait helps."""
        needed_s, own_s = SLACK * (line_s + self.wait_s + self.own_s), SLACK * self.own_s
        if left_s >= needed_s:
            return None
        if left_s < own_s:
            text = f"{TOO_LATE}: its own tokens take {own_s:.1f} s, and it has {left_s:.1f}"
            text += "; give it more time, or ask for fewer"
            return OverloadedError(text, retry_after_s=inf)
        text = f"{TOO_LATE}: that takes {needed_s:.1f} s now, and it has {left_s:.1f}"
        return OverloadedError(text, retry_after_s=needed_s - left_s)


def whose_way(
    route: Route | None, placement: Placement | None, workers: Workers
) -> tuple[Workers, Workers]:
    """Those of which one computes its prompt, and those of which one decodes. Without a route it
    waits for whichever comes free."""
    if route is not None:
        mode = route.mode
        takers: Workers = [each for each in workers if each.incarnation == route.incarnation]
    elif placement is not None:
        mode, takers = placement.mode, placement.workers
    else:
        return (), ()
    decode = [each for each in workers if each.ready and each.role == "decode"]
    return takers, takers if mode == "local" else decode


def answer_time(
    live: LiveRequest,
    num_uncached: int,
    takers: Workers,
    readers: Workers,
    gaps_s: Mapping[str, float],
) -> AnswerTime:
    """Where one of `takers` computes its prompt, of which `num_uncached` tokens are left, and one
    of `readers` decodes.

    The prompt's computing, meanwhile a place in a batch, and then as many tokens as the request
    itself asks for at the least, each after the reader's gap of late (`gaps_s`, by incarnation), or
    a step of its own where the reader has decoded none. One of an earlier priority than the default
    may be given its place sooner, and one that wants one token needs none. A long prompt takes more
    than its tokens, and how much more a fit to short ones does not say.
    """
    trial_token_s = min((worker.trial_token_s for worker in takers), default=0.0)
    computing_s = TRUST * num_uncached * trial_token_s
    sampling = live.work.sampling
    if sampling.max_tokens == 1 or not readers:
        return AnswerTime(0.0, computing_s)
    waits = live.request.priority >= DEFAULT_PRIORITY
    num_gaps = max(sampling.least_tokens - 1, 0)
    times = (
        AnswerTime(
            max(0.0, waits * reader.place_s - computing_s),
            computing_s + num_gaps * _gap_s(reader, gaps_s),
        )
        for reader in readers
    )
    return min(times, key=sum)


def _gap_s(reader: WorkerView, gaps_s: Mapping[str, float]) -> float:
    costs = reader.costs
    return gaps_s.get(reader.incarnation) or TRUST * (costs.step_s + costs.row_s)
