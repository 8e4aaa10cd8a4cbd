"""A folder in the cache that is made once, whole or not at all, whoever races for it."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def made_folder(path: Path, write: Callable[[Path], None]) -> Path:
    """`path`, filled by `write` if it is not there. OSError if it cannot be made."""
    if path.is_dir():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=path.parent, prefix=".making-"))
    try:
        write(fresh)
        fresh.rename(path)
    except OSError:
        if not path.is_dir():
            raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return path
