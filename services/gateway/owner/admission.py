"""Whether a prompt may start now: only if what it leads to will be taken in time.

Pure. A hand-over that is the bottleneck must show here and not as requests that die waiting for
it: the KV a worker has still to hand over, divided by the rate measured there, is how long a new
prompt's KV would wait. A link with nothing to carry always takes one, so it is tried again.
"""

from collections.abc import Sequence

from services.gateway.owner.worker_view import WorkerView

HAND_OVER_LIMIT_S = 0.5
"""KV waits no longer than this for its turn on the link. The wait stands between the client's
first two tokens; half a second keeps a link busy between two arrivals"""


def hand_over_s(worker: WorkerView) -> float:
    """Seconds until the KV that is on its way from or to this worker has travelled; 0 as long as
    no rate was measured."""
    if not worker.unpulled_tokens or not worker.pull_tokens_s:
        return 0.0
    return worker.unpulled_tokens / worker.pull_tokens_s


def in_time(workers: Sequence[WorkerView]) -> list[WorkerView]:
    """Those whose link takes one more prompt."""
    return [worker for worker in workers if hand_over_s(worker) <= HAND_OVER_LIMIT_S]
