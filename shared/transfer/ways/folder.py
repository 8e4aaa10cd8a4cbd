"""The folder where mapped workers of one host meet: each has a socket there."""

import contextlib
import os
import secrets
import socket
import stat
from pathlib import Path

from shared.errors import SettingsError
from shared.runtime_folder import runtime_folder

OF_THE_USER = "kv"
NAME_BYTES = 8
"""of a socket's random name, in hexadecimal"""


def transfer_folder(named: str) -> Path:
    """The folder, made with mode 0700 when absent. `named`: the setting; empty: one of this user
    in the runtime folder. SettingsError if it cannot be made, or if others may put a socket of
    theirs there."""
    folder = Path(named).absolute() if named else runtime_folder() / OF_THE_USER
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        raise SettingsError(f"--transfer-dir: cannot make {folder}: {error.strerror}") from None
    if status.st_uid != os.getuid():
        raise SettingsError(f"--transfer-dir: {folder} belongs to another user")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise SettingsError(f"--transfer-dir: other users may write to {folder}")
    return folder


def new_socket_name() -> str:
    """One that no worker had before."""
    return f"{secrets.token_hex(NAME_BYTES)}.sock"


def remove_dead_sockets(folder: Path) -> None:
    """Removes the sockets that killed workers left: no process has them, nor ever will."""
    for path in folder.glob("[0-9a-f]" * 2 * NAME_BYTES + ".sock"):
        if _is_dead(path):
            with contextlib.suppress(OSError):  # another worker was faster
                path.unlink()


def _is_dead(path: Path) -> bool:
    """Whether it refuses. A datagram socket asks: one that a process has, listening or about to,
    is of the wrong kind for it, and does not notice."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(str(path))
        except ConnectionRefusedError:
            return path.is_socket()
        except OSError:
            return False
    return False
