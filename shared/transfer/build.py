"""The transport a worker's settings name."""

from collections.abc import Sequence
from dataclasses import replace

from shared.clock import Clock
from shared.errors import SettingsError
from shared.kv.memory import KVMemory
from shared.mover.agent import MISSING, is_installed
from shared.mover.copies import NOT_LINKED
from shared.settings.groups import Settings
from shared.transfer.blocks.copied import ShownPool
from shared.transfer.blocks.payloads import payloads_of
from shared.transfer.limits import TransferLimits
from shared.transfer.terms import Terms
from shared.transfer.transport import KVTransport
from shared.transfer.ways.auto import Mover, auto_transport
from shared.transfer.ways.folder import transfer_folder
from shared.transfer.ways.mapped import mapped_transport
from shared.transfer.ways.nccl import nccl_transport
from shared.transfer.ways.nixl import nixl_transport
from shared.transfer.ways.tcp import tcp_transport

DEVICE_COPY_BYTES = 256 * 2**20
"""1 ms between GPUs that are linked; asking for a copy takes a third of that"""


def check_transport(settings: Settings) -> None:
    """SettingsError for settings that the transport they name cannot follow."""
    transport, tp = settings.handover.transport, settings.compute.tp
    if tp > 1 and transport == "nccl":
        raise SettingsError(
            f"--transport nccl with {tp} ranks (--tp, --prefill-tp, --decode-tp): {NOT_LINKED}; "
            "take --transport auto, mapped, nixl or tcp"
        )
    if transport in ("auto", "mapped"):
        transfer_folder(settings.handover.transfer_dir)
    if transport == "nixl" and not is_installed():
        raise SettingsError(f"--transport nixl: {MISSING}, or take --transport auto")
    if transport != "mapped":
        return
    for flag, given in (
        ("--transfer-port", settings.worker.transfer_port),
        ("--transfer-advertise", settings.worker.transfer_advertise),
    ):
        if given:
            raise SettingsError(
                f"{flag} has no meaning with --transport mapped: workers of one host meet in "
                "--transfer-dir. --transport auto, nixl, nccl or tcp listens at a port"
            )


def build_transport(
    settings: Settings,
    incarnation: str,
    memory: KVMemory,
    pools: Sequence[int],
    mover: Mover,
    clock: Clock,
) -> KVTransport:
    """Ready to pull into `memory`, or into the ranks' pools whose descriptors are `pools`, and to
    serve it once started. SettingsError as `check_transport`."""
    check_transport(settings)
    handover, network = settings.handover, settings.network
    limits = TransferLimits(lease_s=handover.lease_s, max_pulls=handover.max_pulls)
    if not memory.holds_blocks:
        limits = replace(limits, max_copy_bytes=DEVICE_COPY_BYTES, in_bursts=True)
    terms = Terms(network.cell_secret, limits, clock)
    listen_at = network.host, settings.worker.transfer_port
    if handover.transport == "tcp":
        return tcp_transport(
            memory,
            incarnation,
            listen_at=listen_at,
            digester=mover,
            payloads=payloads_of(memory, mover),
            terms=terms,
        )
    if handover.transport == "nixl":
        return nixl_transport(
            memory,
            incarnation,
            mover,
            num_ranks=settings.compute.tp,
            listen_at=listen_at,
            terms=terms,
        )
    if handover.transport == "nccl":
        return nccl_transport(memory, incarnation, mover, listen_at=listen_at, terms=terms)
    folder, shown = transfer_folder(handover.transfer_dir), ShownPool(memory, pools)
    if handover.transport == "mapped":
        return mapped_transport(shown, incarnation, mover, folder=folder, terms=terms)
    return auto_transport(
        shown, incarnation, mover, folder=folder, listen_at=listen_at, terms=terms
    )
