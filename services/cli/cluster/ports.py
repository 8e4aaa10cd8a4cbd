"""The gateway's port, found before the gateway runs."""

import socket

from shared.errors import SettingsError


def reserve_port(host: str, port: int) -> socket.socket:
    """A bound socket that never listens; keep it open to keep the port.

    Both this socket and the server's have SO_REUSEADDR, so the gateway can listen on the port,
    also after a restart, while the kernel gives it to nobody who asks for any free port.
    SettingsError when the port is taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    holder = socket.socket(family, socket.SOCK_STREAM)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        holder.bind((host, port))
    except OSError as error:
        holder.close()
        cure = "" if port == 0 else "; --port 0 picks a free one"
        raise SettingsError(f"cannot use {host}:{port}: {error.strerror}{cure}") from error
    return holder


def local_url(host: str, port: int) -> str:
    """The URL under which a client on this machine reaches a server that listens on `host`."""
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}.get(host, host)  # noqa: S104
    if ":" in name and not name.startswith("["):
        name = f"[{name}]"
    return f"http://{name}:{port}"
