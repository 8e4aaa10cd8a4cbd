"""The folder where mapped workers of one host meet: each has a socket there."""

import os
import stat
from pathlib import Path

from shared.errors import SettingsError
from shared.runtime_folder import runtime_folder

OF_THE_USER = "kv"


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
