"""The folder where processes of one user on one machine find each other."""

import contextlib
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from shared.errors import BatonError


def runtime_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """A folder only this user can read; made when absent. BatonError if someone else owns it, or
    if nothing can be written, as in a container that is mounted read-only."""
    parent = Path(environ.get("XDG_RUNTIME_DIR") or "")
    try:
        if environ.get("XDG_RUNTIME_DIR") and os.access(parent, os.W_OK):
            folder = parent / "baton"
        else:
            folder = Path(tempfile.gettempdir()) / f"baton-{os.getuid()}"
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        status = folder.lstat()
    except OSError as error:
        raise BatonError(
            f"no folder for running processes: {error}; XDG_RUNTIME_DIR or TMPDIR names one that "
            "can be written"
        ) from None
    # A pod's volume hands its set-group-ID bit down to what is made in it; that lets nobody in.
    private = stat.S_ISDIR(status.st_mode) and status.st_mode & 0o777 == 0o700
    if not private or status.st_uid != os.getuid():
        raise BatonError(f"{folder} is not a private folder of this user; remove it")
    return folder
