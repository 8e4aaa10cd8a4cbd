"""`baton serve prefill`: the io process of a prefill worker."""

from services.prefill.service import PrefillService
from shared.protocol import Attempt
from shared.settings import Settings
from shared.transfer.tcp import TcpTransport
from shared.transfer.transport import TransferLimits
from shared.worker.node import Parts
from shared.worker.run import run_worker


def run(settings: Settings) -> int:
    """Serve until SIGTERM; returns the exit status."""
    return run_worker(settings, "prefill", build_service)


def build_service(parts: Parts) -> PrefillService:
    settings = parts.settings

    def on_release(attempt: Attempt) -> None:
        service.on_released(attempt)

    transport = TcpTransport(
        parts.memory,
        parts.inc,
        on_release,
        listen_at=(settings.host, settings.transfer_port),
        cell_secret=settings.cell_secret,
        limits=TransferLimits(lease_s=settings.lease_s, max_pulls=settings.max_pulls),
        clock=parts.clock,
    )
    service = PrefillService(
        parts.state,
        parts.outbox,
        parts.engine,
        transport,
        parts.clock,
        settings.transfer_advertise,
    )
    return service
