"""Whether a prompt may start now: only if what it leads to will be taken in time.

Pure. A hand-over that is the bottleneck must show here and not as requests that die waiting for
it. The KV that a prefill worker has still to hand over, divided by the rate at which decode workers
were measured to pull it, is how long the link is busy. KV that is not computed yet waits for
prefill, not for the link, so only the part of the transfer that outlasts prefill delays a new
prompt's KV. An idle link always takes a prompt, so a slow one is tried again. KV that waits for
blocks of a full decode worker does not count: a prompt computed there would wait as well.
"""

from collections.abc import Sequence

from services.gateway.owner.links.worker_view import WorkerView

HAND_OVER_LIMIT_S = 0.5
"""KV waits no longer than this for its turn on the link. The wait stands between the client's
first two tokens; half a second keeps a link busy between two arrivals"""


def taken_in_time(prefill: Sequence[WorkerView], decode: Sequence[WorkerView]) -> list[WorkerView]:
    """The prefill workers whose links take one more prompt. A rate never measured is no limit."""
    unreserved_tokens: dict[str, int] = {}
    pulled_tokens: dict[str, int] = {}
    tokens_s: dict[str, float] = {}
    for worker in decode:
        for p_inc, num_tokens in worker.unreserved_tokens.items():
            unreserved_tokens[p_inc] = unreserved_tokens.get(p_inc, 0) + num_tokens
        for p_inc, incoming in worker.incoming.items():
            pulled_tokens[p_inc] = pulled_tokens.get(p_inc, 0) + incoming.num_tokens
            tokens_s[p_inc] = tokens_s.get(p_inc, 0.0) + incoming.tokens_s

    def is_open(worker: WorkerView) -> bool:
        p_inc = worker.incarnation
        if not (rate := tokens_s.get(p_inc, 0.0)):
            return True
        unpulled_tokens = max(0, worker.unpulled_tokens - unreserved_tokens.get(p_inc, 0))
        limit_s = HAND_OVER_LIMIT_S + worker.queued_s
        return unpulled_tokens + pulled_tokens[p_inc] <= limit_s * rate

    return [worker for worker in prefill if is_open(worker)]


def is_behind(decode: WorkerView) -> bool:
    """Whether this decode worker has more to pull than it can in time."""
    measured = [incoming for incoming in decode.incoming.values() if incoming.tokens_s]
    pull_s = sum(incoming.num_tokens / incoming.tokens_s for incoming in measured)
    return pull_s > HAND_OVER_LIMIT_S
