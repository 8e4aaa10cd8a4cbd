"""Where KV is pulled from, as workers tell gateways and gateways tell workers."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TransferAddress:
    """Where a worker's KV is pulled from: a port, a socket, or either."""

    port: str = ""
    """host:port; empty: blocks are not sent"""
    socket: str = ""
    """path of a unix socket on the worker's host; empty: its pool cannot be mapped"""

    def __bool__(self) -> bool:
        return bool(self.port or self.socket)

    def __str__(self) -> str:
        return " or ".join(filter(None, (self.port, self.socket)))


NOWHERE = TransferAddress()
