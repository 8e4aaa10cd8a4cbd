"""What one client connection may cost before any of its requests is understood."""

import resource
import sys
from dataclasses import dataclass

RESERVED_FILES = 128
"""descriptors that are not client connections: links, Redis, pipes, listeners"""


@dataclass(frozen=True)
class HttpLimits:
    """Enforced by `GatewayProtocol`, below the application."""

    header_bytes: int = 16 * 1024
    """request line and headers"""
    num_headers: int = 100
    header_s: float = 10.0
    """from the first byte of a request, or the start of a connection, to the end of headers"""
    body_s: float = 30.0
    """from the end of the headers to the end of the body"""
    body_bytes: int = 4 * 2**20 + 64 * 1024
    """as sent, with the framing of chunks"""
    last_call_s: float = 1.0
    """that a connection stays idle at most once the server stops: a request may be on its way"""
    num_connections: int = 4096
    """open at once; for the next one the longest idle is closed"""
    num_probe_connections: int = 64
    """more that may ask for /health, /ready and /metrics where none is idle"""


def file_limit() -> int:
    """How many connections this process may hold, after raising its soft limit of open files
    to the hard one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return sys.maxsize if hard == resource.RLIM_INFINITY else max(1, hard - RESERVED_FILES)
