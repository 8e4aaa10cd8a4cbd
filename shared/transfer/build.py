"""The transport a worker's settings name."""

from shared.clock import Clock
from shared.kv.memory import KVMemory
from shared.settings.groups import HandoverSettings, NetworkSettings
from shared.transfer.tcp import TcpTransport
from shared.transfer.transport import KVTransport, TransferLimits

TRANSPORTS = {"tcp": TcpTransport}
"""choices of the setting `transport`"""


def build_transport(
    settings: HandoverSettings,
    network: NetworkSettings,
    port: int,
    memory: KVMemory,
    incarnation: str,
    clock: Clock,
) -> KVTransport:
    """Ready to pull into `memory`, and to serve it at `port` once started."""
    return TRANSPORTS[settings.transport](
        memory,
        incarnation,
        listen_at=(network.host, port),
        cell_secret=network.cell_secret,
        limits=TransferLimits(lease_s=settings.lease_s, max_pulls=settings.max_pulls),
        clock=clock,
    )
