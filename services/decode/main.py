"""`baton serve decode`: the io process of a decode worker."""

from services.decode.pulls import Pulls
from services.decode.service import DecodeService
from shared.fault_delay import planted_delay_s
from shared.settings import Settings
from shared.transfer.tcp import TcpTransport
from shared.transfer.transport import TransferLimits
from shared.worker.node import Parts
from shared.worker.run import run_worker


def run(settings: Settings) -> int:
    """Serve until SIGTERM; returns the exit status."""
    return run_worker(settings, "decode", build_service)


def build_service(parts: Parts) -> DecodeService:
    settings = parts.settings
    limits = TransferLimits(lease_s=settings.lease_s, max_pulls=settings.max_pulls)
    transport = TcpTransport(
        parts.memory,
        parts.inc,
        limits=limits,
        clock=parts.clock,
        cell_secret=settings.cell_secret,
    )
    pulls = Pulls(transport, planted_delay_s(settings.fault_delay, "transport"))
    return DecodeService(parts.state, parts.outbox, parts.engine, pulls, parts.clock)
