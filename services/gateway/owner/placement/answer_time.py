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
    least_s: float
    """the same on a worker that does nothing else"""

    def refusal(self, left_s: float, line_s: float) -> OverloadedError | None:
        """Of a request that has so long, and waits so long in the line first; None: it is in time.
        It may come back when others are done; where its own tokens take too long no wait helps."""
        needed_s = SLACK * (line_s + self.wait_s + self.own_s)
        if left_s >= needed_s:
            return None
        text = f"{TOO_LATE}: that takes {needed_s:.1f} s now, and it has {left_s:.1f}"
        if left_s >= self.least_s:
            return OverloadedError(text, retry_after_s=needed_s - left_s)
        text += "; give it more time, or ask for fewer tokens"
        return OverloadedError(text, retry_after_s=inf)


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
    request, sampling = live.request, live.work.sampling
    if sampling.max_tokens == 1 or not readers:
        return AnswerTime(0.0, computing_s, computing_s)
    waits = request.priority >= DEFAULT_PRIORITY
    least_tokens = sampling.min_tokens if request.has_stops else sampling.least_tokens
    num_gaps = max(least_tokens - 1, 0)

    def by(reader: WorkerView) -> AnswerTime:
        least_gap_s = TRUST * (reader.costs.step_s + reader.costs.row_s)
        gap_s = gaps_s.get(reader.incarnation) or least_gap_s
        return AnswerTime(
            max(0.0, waits * reader.place_s - computing_s),
            computing_s + num_gaps * gap_s,
            computing_s + num_gaps * min(gap_s, least_gap_s),
        )

    return min(map(by, readers), key=lambda time: time.wait_s + time.own_s)
