"""How long a request that a worker takes now waits for its answer at the least. Pure."""

from collections.abc import Sequence

from services.gateway.owner.links.worker_view import WorkerView
from services.gateway.owner.live_request import LiveRequest
from services.gateway.owner.placement.router import Route
from shared.protocol import DEFAULT_PRIORITY

TRUST = 0.5
"""of what a trial said: the device was cold, or something else ran"""


def least_s(live: LiveRequest, route: Route, views: Sequence[WorkerView]) -> float:
    """Seconds until it has more than its first token, if it goes this way to one of `views`: its
    prompt's computing, and a place in a batch. One of an earlier priority than the default may be
    given its place sooner, and one that wants one token needs none.

    A long prompt takes more than its tokens, and how much more a fit to short ones does not say.
    """
    worker = next(view for view in views if view.incarnation == route.incarnation)
    computing_s = TRUST * worker.trial_token_s * route.num_uncached_tokens
    if live.request.priority < DEFAULT_PRIORITY or live.work.sampling.max_tokens == 1:
        return computing_s
    readers = [worker] if route.mode == "local" else views
    places_s = [view.place_s for view in readers if view.ready and view.role == "decode"]
    return max(computing_s, min(places_s, default=0.0))
