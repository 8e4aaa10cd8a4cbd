"""Step 3 of a request: which worker computes the prompt, and which one decodes.

Pure: a decision from a snapshot of the workers, their cached prefixes and a fitted cost. The
estimate is the time to token 1: what the worker has queued, and the step costs of the prompt's
uncached tokens. A worker that decodes too holds its sequences up with a prompt, so there each of
them adds the prompt's seconds.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from services.gateway.owner.links.worker_view import WorkerView
from services.gateway.owner.machine.effects import LocalReason, Mode
from services.gateway.owner.placement.admission import is_behind, taken_in_time
from services.gateway.owner.placement.avoidance import NOBODY, Avoidance
from services.gateway.owner.placement.candidates import candidates
from shared.settings.groups import Topology

_ROOM, _EARLY_ROOM = attrgetter("room.tokens"), attrgetter("room.early_tokens")


@dataclass(frozen=True, slots=True)
class Prompt:
    """What routing needs of a request."""

    num_tokens: int
    block_size: int
    holders: Mapping[str, int]
    """incarnation -> leading blocks it holds"""
    prefer_incarnation: str | None = None
    avoidance: Avoidance = NOBODY
    alone: bool = False
    """workers have died of it, or of what was computed with it"""
    early: bool = True
    """later ones take none of its room"""


@dataclass(frozen=True, slots=True)
class Route:
    """The chosen worker and why."""

    incarnation: str
    mode: Mode
    reason: LocalReason
    num_uncached_tokens: int
    estimate_s: float
    num_candidates: int
    why: str
    """preferred, prefix, least_loaded, only or moves"""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where prompts may go now: the mode, its reason, and the ready workers for it."""

    mode: Mode
    reason: LocalReason
    workers: Sequence[WorkerView]


def choose_placement(
    workers: Sequence[WorkerView], topology: Topology, prefill_seen: bool
) -> Placement | None:
    """Prefill workers if one lives, else decode workers alone; None when nobody can serve.

    `prefill_seen`: the pool has had a prefill worker, or one was awaited for long enough. Until
    then a pool of topology `pd` is still starting, and one of topology `auto` is aggregated.
    """
    decode = [worker for worker in workers if worker.ready and worker.role == "decode"]
    if topology != "agg":
        prefill = [worker for worker in workers if worker.ready and worker.role == "prefill"]
        if prefill and not decode:
            return Placement("prefill", "", prefill)
        if prefill:
            return _hand_over(prefill, decode)
    if not decode or (topology == "pd" and not prefill_seen):
        return None
    aggregated = topology == "agg" or not prefill_seen
    return Placement("local", "agg" if aggregated else "no_prefill_worker", decode)


def _hand_over(prefill: list[WorkerView], decode: list[WorkerView]) -> Placement:
    """To the prefill workers whose KV is taken in time, else past them."""
    open_links = taken_in_time(prefill, decode)
    if open_links:
        return Placement("prefill", "", open_links)
    return Placement("local", "slow_link", decode)


def reachable(
    placement: Placement, workers: Sequence[WorkerView], avoidance: Avoidance
) -> Placement:
    """`placement` without prefill workers that no decode worker can pull from now. If every pair
    is broken, decode workers compute the prompt themselves: slower, but it gets there."""
    if placement.mode == "local" or not avoidance.closed:
        return placement
    decode = [worker for worker in workers if worker.ready and worker.role == "decode"]
    connected = avoidance.connected(placement.workers, decode)
    if connected:
        return Placement("prefill", "", connected)
    return Placement("local", "no_pair", decode)


def choose_worker(placement: Placement, prompt: Prompt, rng: random.Random) -> Route | None:
    """Step 3: the worker that costs least among the candidates with room; None: backlog.

    A worker that failed is not chosen for being the only one with room: it has room because it
    fails."""
    open_ = prompt.avoidance.open(placement.workers)
    if prompt.alone:
        open_ = _lane(open_)
    room, num, early = _EARLY_ROOM if prompt.early else _ROOM, prompt.num_tokens, prompt.early
    workers = [w for w in open_ if w.idle or room(w) >= num or w.room.takes(num, early=early)]
    workers = list(prompt.avoidance.unsuspected(workers))
    if not workers:
        return None
    preferred, decodes = prompt.prefer_incarnation, placement.mode == "local"
    compared = candidates(workers, prompt.holders, preferred, rng, decodes=decodes)
    cost = _added_s if decodes else _estimate_s
    # A retry's former worker comes first: its cache holds what that attempt computed.
    chosen = min(
        compared, key=lambda w: (w.incarnation != preferred, cost(w, prompt), w.incarnation)
    )
    return Route(
        incarnation=chosen.incarnation,
        mode=placement.mode,
        reason=placement.reason,
        num_uncached_tokens=_uncached(chosen, prompt),
        estimate_s=_estimate_s(chosen, prompt),
        num_candidates=len(compared),
        why=_why(chosen, prompt, len(workers)),
    )


def moving_route(source: WorkerView, prompt: Prompt) -> Route:
    """To the worker that decodes the request: its cache has what another is to go on with."""
    num_uncached, estimate_s = _uncached(source, prompt), _estimate_s(source, prompt)
    return Route(source.incarnation, "prefill", "", num_uncached, estimate_s, 1, "moves")


def choose_decode(workers: Sequence[WorkerView], prompt: Prompt, source: str = "") -> str | None:
    """Step 5: the decode worker with room that is not behind; of those the one with the fewest
    sequences; then more of the prefix, more spare blocks. It pulls from `source`.

    None when no other decode worker is ready: prefill goes on and the choice is made later.
    """
    others = [w for w in workers if w.ready and w.role == "decode" and w.incarnation != source]
    if not others:
        return None
    best = prompt.avoidance.unsuspected(prompt.avoidance.open(others, source))
    if prompt.alone:
        best = _lane(best)
    needed = -(-prompt.num_tokens // prompt.block_size)
    return min(
        best,
        key=lambda w: (
            w.spare_blocks < needed,
            is_behind(w),
            w.num_sequences,
            -prompt.holders.get(w.incarnation, 0),
            -w.spare_blocks,
            w.incarnation,
        ),
    ).incarnation


def _lane(workers: Sequence[WorkerView]) -> Sequence[WorkerView]:
    """The same one for all that are computed alone."""
    return sorted(workers, key=lambda worker: worker.incarnation)[:1]


def _uncached(worker: WorkerView, prompt: Prompt) -> int:
    """Tokens left to compute; the last one always is, its logits are wanted."""
    cached = prompt.holders.get(worker.incarnation, 0) * prompt.block_size
    return max(prompt.num_tokens - cached, 1)


def _prompt_s(worker: WorkerView, prompt: Prompt) -> float:
    """What the prompt adds to the worker's steps."""
    num_tokens = prompt.num_tokens
    return worker.costs.prompt_s(num_tokens, num_tokens - _uncached(worker, prompt))


def _estimate_s(worker: WorkerView, prompt: Prompt) -> float:
    """Until token 1."""
    return worker.queued_s + worker.costs.step_s + _prompt_s(worker, prompt)


def _added_s(worker: WorkerView, prompt: Prompt) -> float:
    """By this choice, to all requests: until its token 1, and as long as the prompt is computed to
    each that decodes there, or will by then: it hardly goes on meanwhile."""
    num_waiting = 1 + worker.num_sequences
    return worker.queued_s + num_waiting * _prompt_s(worker, prompt)


def _why(chosen: WorkerView, prompt: Prompt, num_workers: int) -> str:
    if num_workers == 1:
        return "only"
    if chosen.incarnation == prompt.prefer_incarnation:
        return "preferred"
    return "prefix" if chosen.incarnation in prompt.holders else "least_loaded"
