"""The transport a worker's settings name."""

from shared.clock import Clock
from shared.errors import SettingsError
from shared.kv.memory import KVMemory
from shared.settings.groups import Settings
from shared.transfer.blocks.copied import ShownPool
from shared.transfer.folder import transfer_folder
from shared.transfer.mapped import BlockMover, MappedTransport
from shared.transfer.tcp import TcpTransport
from shared.transfer.transport import KVTransport, TransferLimits


def check_transport(settings: Settings) -> None:
    """SettingsError for settings that the transport they name cannot follow."""
    if settings.handover.transport == "tcp":
        return
    for flag, given in (
        ("--transfer-port", settings.worker.transfer_port),
        ("--transfer-advertise", settings.worker.transfer_advertise),
    ):
        if given:
            raise SettingsError(
                f"{flag} has no meaning with --transport mapped: workers of one host meet in "
                "--transfer-dir. --transport tcp listens at a port"
            )
    transfer_folder(settings.handover.transfer_dir)


def build_transport(
    settings: Settings,
    incarnation: str,
    memory: KVMemory,
    pool: int | None,
    mover: BlockMover,
    clock: Clock,
) -> KVTransport:
    """Ready to pull into `memory`, or into the GPU's pool whose descriptor is `pool`, and to serve
    it once started. SettingsError as `check_transport`."""
    check_transport(settings)
    handover, network = settings.handover, settings.network
    limits = TransferLimits(lease_s=handover.lease_s, max_pulls=handover.max_pulls)
    if handover.transport == "mapped":
        return MappedTransport(
            ShownPool(memory, pool),
            incarnation,
            mover,
            folder=transfer_folder(handover.transfer_dir),
            cell_secret=network.cell_secret,
            limits=limits,
            clock=clock,
        )
    return TcpTransport(
        memory,
        incarnation,
        listen_at=(network.host, settings.worker.transfer_port),
        cell_secret=network.cell_secret,
        digester=mover,
        limits=limits,
        clock=clock,
    )
