"""`baton serve prefill`: the io process of a prefill worker."""

from services.prefill.service import PrefillService
from shared.settings.groups import Settings
from shared.transfer.build import build_transport
from shared.worker.node import Parts
from shared.worker.run import run_worker


def run(settings: Settings) -> int:
    """Serve until SIGTERM; returns the exit status."""
    return run_worker(settings, "prefill", build_service)


def build_service(parts: Parts) -> PrefillService:
    transport = build_transport(
        parts.settings, parts.incarnation, parts.memory, parts.pools, parts.mover, parts.clock
    )
    return PrefillService(parts.state, parts.outbox, parts.engine, transport, parts.clock)
