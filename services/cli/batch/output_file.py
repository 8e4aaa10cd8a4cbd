"""A batch's output: one answer a line, each once, whatever kills whoever writes it.

A line counts as written once it is whole: a torn one, which only the end of the file can have, is
cut when the file is opened again, if it begins as an answer to this input does: a file of another
kind stays as it is. What the kernel has survives the death of this process. For the
death of the machine there is fsync, with the first line that is SYNC_EVERY_S later than the one
before, and at the end; a line that is lost all the same is asked for again.
"""

import fcntl
import json
import os
import stat
import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Self

from shared.errors import BatonError, SettingsError

SYNC_EVERY_S = 1.0
OK = 200


class OutputFile:
    """Open until it is closed, by one process at a time."""

    def __init__(
        self, path: Path, custom_ids: Collection[str], answer_id: Callable[[str], str]
    ) -> None:
        """`custom_ids`: of the input; `answer_id`: of the answer to each. SettingsError for a file
        that another run writes to, or that holds something else than answers to this input, and
        for what is no file, such as a pipe."""
        self._path = path
        self._lock = threading.Lock()
        self._synced_s = time.monotonic()
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise SettingsError(f"{path}: {error.strerror}") from None
        try:
            self._check_kind()
            self._take()
            self.num_failed = 0
            """of the answers that it had when it was opened, those with a status that is not 200"""
            self.answered = self._read(frozenset(custom_ids), answer_id)
            """custom_ids of these answers"""
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

    def _check_kind(self) -> None:
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            why = "a batch goes on from its output, which this does not keep"
            raise SettingsError(f"{self._path}: no regular file; {why}; name a file")

    def _take(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SettingsError(f"{self._path}: another run writes to it") from None

    def _read(self, custom_ids: frozenset[str], answer_id: Callable[[str], str]) -> frozenset[str]:
        """The custom_ids of its answers, once a torn line is cut."""
        answered: set[str] = set()
        end = 0
        with os.fdopen(os.dup(self._fd), "rb") as file:
            for number, line in enumerate(file, 1):
                where = f"{self._path}: line {number}"
                if not line.endswith(b"\n"):
                    if not any(_begins(line, answer_id(each)) for each in custom_ids):
                        why = "begins no answer to this input; is it a batch's output at all?"
                        raise SettingsError(f"{where} {why} Name another file")
                    os.ftruncate(self._fd, end)
                    break
                end += len(line)
                custom_id, its_id, status = _said(line)
                if custom_id not in custom_ids or custom_id in answered:
                    why = "answers none of the input's lines, or one that is answered already"
                    raise SettingsError(f"{where} {why}; name another file")
                if its_id != answer_id(custom_id):
                    why = f"answers {custom_id!r} with another body than it has now"
                    raise SettingsError(f"{where} {why}; take that line out, or name another file")
                answered.add(custom_id)
                self.num_failed += status != OK
        return frozenset(answered)

    def _sync(self) -> None:
        os.fsync(self._fd)
        self._synced_s = time.monotonic()


def _begins(torn: bytes, its_id: str) -> bool:
    """Whether this is what `append` had written of the answer with this id when it was stopped."""
    begin = f'{{"id":"{its_id}",'.encode()
    return torn.startswith(begin) or begin.startswith(torn)


def _said(line: bytes) -> tuple[str, str, int]:
    """custom_id, id and status of an answer; empty and 0 where it is none."""
    try:
        answer = json.loads(line)
        return str(answer["custom_id"]), str(answer["id"]), int(answer["response"]["status_code"])
    except (ValueError, LookupError, TypeError):
        return "", "", 0
