"""Whether decode workers have KV blocks for one more request, where none is to wait for them. Pure.

A hint from what they said last, so that a request is refused before anything is computed for it. A
worker that computes its prompt has the last word; what one has taken waits for blocks to decode in.
Where decode workers compute prompts too they need no hint: they also know what later classes would
give.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from services.gateway.owner.links.worker_view import WorkerView
from services.gateway.owner.live_request import LiveRequest
from services.gateway.owner.placement.router import Placement
from shared.kv.layout import num_blocks_for


def has_kv_room(
    live: LiveRequest,
    others: Iterable[LiveRequest],
    workers: Sequence[WorkerView],
    holders: Mapping[str, int],
) -> bool:
    """True too where nobody decodes: then it waits for a worker, not for blocks; and where nobody
    hands over. `others`: of this gateway. `holders`: blocks of its prefix that workers have, by
    incarnation."""
    if not any(worker.ready and worker.role == "prefill" for worker in workers):
        return True
    decode = [worker for worker in workers if worker.ready and worker.role == "decode"]
    spare = [max(0, worker.spare_blocks - _num_owed(worker, live.block_size)) for worker in decode]
    held = max((holders.get(worker.incarnation, 0) for worker in decode), default=0)
    needed = live.max_blocks - held
    coming = sum(other.max_blocks for other in others if _comes(other))
    return not spare or (max(spare) >= needed and sum(spare) >= needed + coming)


def with_blocks(placement: Placement, live: LiveRequest) -> Placement:
    """Without the workers that have refused it for lack of KV blocks, as long as it may be."""
    full = live.assignment.full
    if live.work.accepted or not full:
        return placement
    left = [worker for worker in placement.workers if worker.incarnation not in full]
    return replace(placement, workers=left)


def _num_owed(worker: WorkerView, block_size: int) -> int:
    """Blocks that are wanted there already."""
    return num_blocks_for(sum(worker.unreserved_tokens.values()), block_size)


def _comes(live: LiveRequest) -> bool:
    """Prefill has it, or it is on its way to decode, whose word of free blocks may be older. What
    has its blocks there and no token yet counts twice, rather than not at all."""
    machine = live.machine
    is_there = machine.active and not machine.waits
    return is_there and machine.mode == "prefill" and not machine.decode_spoke
