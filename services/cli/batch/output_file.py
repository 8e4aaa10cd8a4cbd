"""A batch's output: one answer a line, each once, whatever kills whoever writes it.

A line counts as written once it is whole: a torn one, which only the end of the file can have, is
cut when the file is opened again. What the kernel has survives the death of this process. For the
death of the machine there is fsync, with the first line that is SYNC_EVERY_S later than the one
before, and at the end; a line that is lost all the same is asked for again.
"""

import fcntl
import json
import os
import threading
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Self

from shared.errors import BatonError, SettingsError

SYNC_EVERY_S = 1.0


class OutputFile:
    """Open until it is closed, by one process at a time."""

    def __init__(self, path: Path, custom_ids: Collection[str]) -> None:
        """`custom_ids`: of the input. SettingsError for a file that another run writes to, or that
        holds something else than answers to this input."""
        self._path = path
        self._lock = threading.Lock()
        self._synced_s = time.monotonic()
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise SettingsError(f"{path}: {error.strerror}") from None
        try:
            self._take()
            self.answered = self._read(frozenset(custom_ids))
            """custom_ids of the answers that it had when it was opened"""
        except BaseException:
            os.close(self._fd)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def append(self, answer: Mapping[str, Any]) -> None:
        """Safe to call from several threads; BatonError if the disk does not take it."""
        line = json.dumps(answer, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
        with self._lock:
            try:
                written = os.write(self._fd, line)
                while written < len(line):
                    written += os.write(self._fd, line[written:])
                if time.monotonic() - self._synced_s >= SYNC_EVERY_S:
                    self._sync()
            except OSError as error:
                raise BatonError(f"{self._path}: {error.strerror}; run it again to go on") from None

    def close(self) -> None:
        with self._lock:
            if self._fd >= 0:
                self._sync()
                os.close(self._fd)
                self._fd = -1

    def _take(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SettingsError(f"{self._path}: another run writes to it") from None

    def _read(self, custom_ids: frozenset[str]) -> frozenset[str]:
        """The custom_ids of its answers, once a torn line is cut."""
        answered: set[str] = set()
        end = 0
        with os.fdopen(os.dup(self._fd), "rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    os.ftruncate(self._fd, end)
                    break
                end += len(line)
                custom_id = _id_of(line)
                if custom_id not in custom_ids or custom_id in answered:
                    why = "answers none of the input's lines, or one that is answered already"
                    raise SettingsError(f"{self._path}: line {number} {why}; name another file")
                answered.add(custom_id)
        return frozenset(answered)

    def _sync(self) -> None:
        os.fsync(self._fd)
        self._synced_s = time.monotonic()


def _id_of(line: bytes) -> str:
    """Empty where it is no answer."""
    try:
        custom_id = json.loads(line)["custom_id"]
    except (ValueError, LookupError, TypeError):
        return ""
    return custom_id if isinstance(custom_id, str) else ""
