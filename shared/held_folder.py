"""Temporary folders that outlive no process for long: the next to make one removes those of the
dead."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def held_folder(prefix: str) -> Iterator[Path]:
    """A new folder of this process, mode 0700, removed at the end. A folder of the same prefix and
    user that nobody holds any more is removed at once. OSError if none can be made."""
    _remove_dead(prefix)
    folder, lock = _made_and_locked(prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _made_and_locked(prefix: str) -> tuple[Path, int]:
    """The folder and the descriptor that holds it until it is closed; the kernel closes it for a
    process that was killed. One that was taken for dead before it was locked is made again."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix))
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(folder, os.O_RDONLY)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.exists():
                return folder, lock
            os.close(lock)


def _remove_dead(prefix: str) -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # another user's, no folder, held, or just removed
            _remove_unless_held(folder)


def _remove_unless_held(folder: Path) -> None:
    """OSError if it is held, or not this user's folder."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(lock).st_uid == os.getuid():
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
