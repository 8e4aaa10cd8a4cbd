"""Why a pool serves nobody now."""

from collections.abc import Sequence

from services.gateway.owner.links.worker_view import WorkerView
from shared.settings.groups import Topology


def missing_workers(
    workers: Sequence[WorkerView], topology: Topology, prefill_seen: bool
) -> dict[str, str]:
    """Which workers a request would need that are not there, by role; empty when it can be
    served."""
    starting = topology == "pd" and not prefill_seen
    missing = {}
    for role in ("prefill", "decode") if starting else ("decode",):
        linked = [worker for worker in workers if worker.role == role]
        if not linked:
            missing[role] = f"no {role} worker is linked"
        elif not any(worker.ready or worker.stalled for worker in linked):
            missing[role] = f"no linked {role} worker takes work"
    return missing
