"""How long a request takes from when a worker takes it. Pure."""

from collections.abc import Mapping, Sequence

from services.gateway.owner.links.worker_view import WorkerView
from services.gateway.owner.live_request import LiveRequest
from services.gateway.owner.placement.router import Placement, Route
from shared.protocol import DEFAULT_PRIORITY

TRUST = 0.5
"""of what a trial or a fit says: the device was cold, or something else ran"""
SLACK = 1.2
"""times what it is expected to take is left for a request: it may wait, or decode, longer"""

Workers = Sequence[WorkerView]


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


def answering_s(
    live: LiveRequest,
    num_uncached: int,
    takers: Workers,
    readers: Workers,
    gaps_s: Mapping[str, float],
) -> float:
    """Seconds until its answer can be whole, as it goes now, where one of `takers` computes its
    prompt, of which `num_uncached` tokens are left, and one of `readers` decodes.

    The prompt's computing, meanwhile a place in a batch, and then as many tokens as the request
    itself asks for at the least, each after the reader's gap of late (`gaps_s`, by incarnation), or
    a step of its own where the reader has decoded none. One of an earlier priority than the default
    may be given its place sooner, and one that wants one token needs none. A long prompt takes more
    than its tokens, and how much more a fit to short ones does not say.
    """
    trial_token_s = min((worker.trial_token_s for worker in takers), default=0.0)
    computing_s = TRUST * num_uncached * trial_token_s
    if live.work.sampling.max_tokens == 1:
        return computing_s
    waits = live.request.priority >= DEFAULT_PRIORITY
    num_gaps = max(live.work.sampling.min_tokens - 1, 0)
    return min(
        (
            max(computing_s, waits * reader.place_s) + num_gaps * _gap_s(reader, gaps_s)
            for reader in readers
        ),
        default=computing_s,
    )


def _gap_s(reader: WorkerView, gaps_s: Mapping[str, float]) -> float:
    costs = reader.costs
    return gaps_s.get(reader.incarnation) or TRUST * (costs.step_s + costs.row_s)
