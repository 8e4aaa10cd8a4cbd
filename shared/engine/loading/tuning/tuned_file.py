"""What --tune found, kept for the next start: a file for each thing that was timed.

A file is believed if this user wrote it, if it says that it is of the same thing, and if what it
says could have been chosen. Anything else is said, and timed again.
"""

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from shared.settings.profiles import StepSize

logger = logging.getLogger(__name__)

MAX_BYTES = 65536
Key = Mapping[str, str | int | float | bool]
"""all that times and choice depend on, by name"""


def tuning_folder(environ: Mapping[str, str]) -> Path:
    """In this user's cache. OSError where the user has none."""
    try:
        cache = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError as error:
        raise OSError(str(error)) from None
    return cache / "baton" / "tuning"


class TunedFile:
    """Of one key."""

    def __init__(self, folder: Path, key: Key) -> None:
        self._key = dict(key)
        digest = hashlib.sha256(json.dumps(self._key, sort_keys=True).encode()).hexdigest()
        self.path = folder / f"{digest[:32]}.json"

    def read(self, possible: Callable[[StepSize], bool]) -> StepSize | None:
        """None where there is none to believe; a warning says why, but for one that is not there.
        `possible`: whether these sizes could have been chosen."""
        try:
            size = self._read()
            if not possible(size):
                raise ValueError(f"{tuple(size)} could not have been chosen")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            logger.warning("tune: %s is not believed: %s; timing again", self.path, error)
            return None
        return size

    def write(self, size: StepSize) -> None:
        """As a whole or not at all; a warning says why not."""
        text = json.dumps({"key": self._key, **size._asdict()}, indent=1, sort_keys=True)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self.path.parent) as folder:
                part = Path(folder) / self.path.name
                part.write_text(f"{text}\n", encoding="utf-8")
                part.replace(self.path)
        except OSError as error:
            logger.warning(
                "tune: what was found cannot be kept, the next start times again: %s", error
            )

    def _read(self) -> StepSize:
        """ValueError says what it is instead."""
        status = self.path.stat()
        if status.st_uid != os.geteuid():
            raise ValueError(f"it is user {status.st_uid}'s")
        if not self.path.is_file() or status.st_size > MAX_BYTES:
            raise ValueError("it is no file of ours")
        written = json.loads(self.path.read_bytes())
        if not isinstance(written, dict) or written.get("key") != self._key:
            raise ValueError("it is of something else")
        num_tokens, num_seqs = written.get("num_tokens"), written.get("num_seqs")
        if type(num_tokens) is not int or type(num_seqs) is not int:
            raise ValueError("it names no sizes")
        return StepSize(num_tokens, num_seqs)
