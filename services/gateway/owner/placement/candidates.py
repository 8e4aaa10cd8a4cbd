"""Which workers are compared for a prompt: those with the longest prefixes of it, two random ones,
the least loaded and, where it is decoded where it is computed, the one with the fewest sequences.

Enough to find the best in practice, and not everybody picks the same worker at once.
"""

import random
from collections.abc import Mapping, Sequence
from operator import attrgetter

from services.gateway.owner.links.worker_view import WorkerView

MAX_HOLDERS = 8
NUM_RANDOM = 2
_NUM_SEQUENCES = attrgetter("num_sequences")


def candidates(
    workers: list[WorkerView],
    holders: Mapping[str, int],
    preferred: str | None,
    rng: random.Random,
    *,
    decodes: bool,
) -> Sequence[WorkerView]:
    """Each once. `holders`: incarnation -> leading blocks it holds; `decodes`: the worker that
    computes the prompt goes on with it."""
    if len(workers) <= MAX_HOLDERS:
        return workers
    chosen = [_least_loaded(workers)]
    if decodes:
        chosen.append(_emptiest(workers, rng))
    if holders:
        held = [
            (-holders[w.incarnation], w.queued_tokens, w.incarnation, w)
            for w in workers
            if w.incarnation in holders
        ]
        chosen += [item[-1] for item in sorted(held)[:MAX_HOLDERS]]
    chosen += [workers[int(rng.random() * len(workers))] for _ in range(NUM_RANDOM)]
    if preferred is not None:
        chosen += [worker for worker in workers if worker.incarnation == preferred]
    return list({worker.incarnation: worker for worker in chosen}.values())


def _least_loaded(workers: list[WorkerView]) -> WorkerView:
    best, best_s = workers[0], float("inf")
    for worker in workers:
        queue_s = worker.queued_s
        if queue_s < best_s or (queue_s == best_s and worker.incarnation < best.incarnation):
            best, best_s = worker, queue_s
    return best


def _emptiest(workers: list[WorkerView], rng: random.Random) -> WorkerView:
    """Any of those with the fewest sequences: all gateways see the same ones."""
    first = int(rng.random() * len(workers))
    return min(workers[first:] + workers[:first], key=_NUM_SEQUENCES)
