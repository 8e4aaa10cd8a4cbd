"""Which attempts made progress, so that a slow one is not taken for dead.

queued, reserve     the engine ran a step, KV moved, or a reader of what is held here lives: each
                    of these can free blocks
prefill, decode     the engine ran a step; decode only while more waits than runs, for
                    otherwise its tokens say it
transfer            bytes of its own came, or, while it waits for its turn, of those before it
held                not reported: the decode worker that pulls it reports its progress
"""

from shared.link.server import Peer
from shared.protocol import Attempt
from shared.worker.attempts.table import HeldAttempt
from shared.worker.state import WorkerState

Mark = tuple[int, ...]
"""changes exactly when the attempt goes on"""


def advanced_attempts(state: WorkerState, peer: Peer) -> tuple[Attempt, ...]:
    """Attempts of this gateway that went on since it was last asked."""
    advanced = []
    for held in state.attempts.of_peer(peer):
        mark = _mark(held, state)
        if mark != held.told_mark:
            held.told_mark = mark
            advanced.append(held.attempt)
    return tuple(advanced)


def _mark(held: HeldAttempt, state: WorkerState) -> Mark:
    num_steps = state.counters.get("engine_steps", 0)
    traffic, stage = state.traffic, held.stage
    if stage in ("queued", "reserve"):
        return num_steps, traffic.moved_bytes, traffic.num_signs
    if stage == "transfer":
        before = traffic.moved_bytes if traffic.waits(held.attempt) else 0
        return traffic.left(held.attempt), before
    if stage == "prefill" or (stage == "decode" and state.queues):
        return (num_steps,)
    return ()
