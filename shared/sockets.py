"""TCP options of every connection between processes of a cell."""

import socket

USER_TIMEOUT_MS = 5_000
"""unacknowledged bytes for this long close the connection; the kernel alone waits 15 minutes"""


def keep_responsive(sock: socket.socket) -> None:
    """No coalescing delay, and a blackholed peer is noticed in seconds."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
