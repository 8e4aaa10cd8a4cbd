"""Prefill and decode pools that both hold blocks while they wait: when each may take which.

Every request needs `need` blocks on its prefill worker and `need` on decode. The protocol's
order (R17): prefill takes all of its blocks before the first chunk, decode reserves all of its
blocks only after START. There is no preemption and no lease here: those would only turn a
deadlock into wasted work.
"""

from dataclasses import dataclass
from typing import NamedTuple

WAITING, RESERVED, DECODING, DONE = range(4)


@dataclass(frozen=True)
class Pools:
    """Sizes in blocks, and the order under test."""

    num_requests: int
    num_prefill: int
    prefill_blocks: int
    decode_blocks: int
    need: int
    reserve_at: str = "start"
    """decode reserves at: dispatch, start, seal"""
    whole: bool = True
    """prefill takes all blocks at once; else chunk by chunk"""


class Request(NamedTuple):
    prefill: int
    taken: int = 0
    """blocks on its prefill worker"""
    sealed: bool = False
    decode: int = WAITING


def deadlocks(pools: Pools) -> tuple[int, int]:
    """(reachable states, those where nobody can move and somebody is not done)."""
    start = tuple(Request(n % pools.num_prefill) for n in range(pools.num_requests))
    seen, queue, dead = {start}, [start], 0
    for state in queue:
        following = _following(pools, state)
        dead += not following and any(request.decode != DONE for request in state)
        for following_state in following:
            if following_state not in seen:
                seen.add(following_state)
                queue.append(following_state)
    return len(seen), dead


def _following(pools: Pools, state: tuple[Request, ...]) -> list[tuple[Request, ...]]:
    used = [0] * pools.num_prefill
    for request in state:
        used[request.prefill] += request.taken
    reserved = pools.need * sum(request.decode in (RESERVED, DECODING) for request in state)
    following = []
    for at, request in enumerate(state):
        for after in _steps(pools, request, used[request.prefill], reserved):
            following.append((*state[:at], after, *state[at + 1 :]))
    return following


def _steps(pools: Pools, request: Request, used: int, reserved: int) -> list[Request]:
    steps = []
    if not request.sealed and request.taken < pools.need:
        amount = pools.need - request.taken if pools.whole else 1
        if used + amount <= pools.prefill_blocks:
            steps.append(request._replace(taken=request.taken + amount))
    if request.taken == pools.need and not request.sealed:
        steps.append(request._replace(sealed=True))
    allowed = {"dispatch": True, "start": request.taken > 0, "seal": request.sealed}
    room = reserved + pools.need <= pools.decode_blocks
    if request.decode == WAITING and allowed[pools.reserve_at] and room:
        steps.append(request._replace(decode=RESERVED))
    if request.decode == RESERVED and request.sealed:
        steps.append(request._replace(taken=0, decode=DECODING))
    if request.decode == DECODING:
        steps.append(request._replace(decode=DONE))
    return steps
