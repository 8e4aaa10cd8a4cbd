"""TCP options of every connection between processes of a cell."""

import socket

USER_TIMEOUT_MS = 5_000
"""unacknowledged bytes for this long close the connection; the kernel alone waits 15 minutes"""
KEEPALIVE_S = 5
"""a connection that is silent for so long is asked, and lost if that is not acknowledged either"""


def keep_responsive(sock: socket.socket) -> None:
    """No coalescing delay, and a blackholed peer is noticed in seconds."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL"):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), KEEPALIVE_S)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
