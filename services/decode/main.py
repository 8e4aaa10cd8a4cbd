"""`baton serve decode`: the io process of a decode worker."""

from services.decode.pulls import Pulls
from services.decode.service import DecodeService
from shared.planted_faults.faults import planted_delay_s
from shared.settings.groups import Settings
from shared.transfer.build import build_transport
from shared.worker.node import Parts
from shared.worker.run import run_worker


def run(settings: Settings) -> int:
    """Serve until SIGTERM; returns the exit status."""
    return run_worker(settings, "decode", build_service)


def build_service(parts: Parts) -> DecodeService:
    settings = parts.settings
    transport = build_transport(
        settings, parts.incarnation, parts.memory, parts.pools, parts.mover, parts.clock
    )
    pulls = Pulls(transport, planted_delay_s(settings.telemetry.planted_faults, "transport"))
    return DecodeService(
        parts.state,
        parts.outbox,
        parts.engine,
        pulls,
        parts.clock,
        prefix_cache=settings.engine.prefix_cache,
    )
