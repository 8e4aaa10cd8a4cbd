"""A batch's input: one request a line, all of them checked before the first is sent."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self

from shared.errors import SettingsError
from shared.fields.client_text import is_unicode

PATHS = ("/v1/chat/completions", "/v1/completions")
KEYS = {"custom_id", "method", "url", "body"}
MAX_ID_CHARS = 512
MAX_TOLD = 10
"""wrong lines that one refusal names"""
DIGEST_BYTES = 12
STANDARD_INPUT = Path("-")
BULK = {"x-baton-class": "bulk"}


class Place(NamedTuple):
    """Where a line lies in the file: a large input is not held in memory."""

    offset: int
    num_bytes: int
    digest: bytes
    """of what is asked there"""


@dataclass(frozen=True)
class BatchRequest:
    """One line of the input."""

    custom_id: str
    path: str
    body: bytes
    """JSON"""
    headers: Mapping[str, str]
    """bulk, unless the body says a priority"""


class InputFile:
    """Open until it is closed; nobody may change the file meanwhile."""

    def __init__(self, path: Path) -> None:
        """`-` is the standard input. SettingsError names every line that is no request, or whose
        custom_id was there."""
        name = "standard input" if path == STANDARD_INPUT else path
        try:
            self._file = seekable(path)
        except OSError as error:
            raise SettingsError(f"{name}: {error.strerror}") from None
        self._places: dict[str, Place] = {}
        problems = list(self._read_places())
        if problems or not self._places:
            self.close()
            told = "; ".join(problems[:MAX_TOLD]) or "it has no requests"
            more = len(problems) - MAX_TOLD
            raise SettingsError(f"{name}: {told}" + (f"; and {more} more" if more > 0 else ""))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    @property
    def custom_ids(self) -> list[str]:
        """In the order of the lines."""
        return list(self._places)

    def lies_at(self, path: Path) -> bool:
        """Also where that is a link to it."""
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), path.stat())
        except OSError:
            return False

    def answer_id(self, custom_id: str) -> str:
        """Of the answer to this line: another body has another."""
        return f"batch_req_{self._places[custom_id].digest.hex()}"

    def read(self, custom_id: str) -> BatchRequest:
        """Safe to call from several threads."""
        place = self._places[custom_id]
        line = json.loads(os.pread(self._file.fileno(), place.num_bytes, place.offset))
        body = line["body"]
        headers = BULK if body.get("priority") is None else {}
        return BatchRequest(custom_id, line["url"], json.dumps(body).encode(), headers)

    def _read_places(self) -> Iterator[str]:
        """What is wrong, line by line; empty lines are none."""
        numbers: dict[str, int] = {}
        offset = 0
        for number, content in enumerate(self._file, 1):
            start, offset = offset, offset + len(content)
            if not content.strip():
                continue
            try:
                custom_id, digest = checked(content)
            except ValueError as error:
                yield f"line {number}: {error}"
                continue
            if custom_id in numbers:
                first = numbers[custom_id]
                yield f"line {number}: custom_id {custom_id!r} is that of line {first}"
                continue
            numbers[custom_id] = number
            self._places[custom_id] = Place(start, len(content), digest)


def seekable(path: Path) -> BinaryIO:
    """The file, or a copy on disk of what a pipe gives, for lines are read again; also of what is
    left of a file that another program began to read."""
    file: BinaryIO = os.fdopen(os.dup(0), "rb") if path == STANDARD_INPUT else path.open("rb")
    if file.seekable() and not file.tell():
        return file
    with file:
        copy = tempfile.TemporaryFile()  # noqa: SIM115 -- the caller closes it
        try:
            shutil.copyfileobj(file, copy)
            copy.seek(0)
        except BaseException:
            copy.close()
            raise
    return copy


def checked(content: bytes) -> tuple[str, bytes]:
    """The custom_id of a line and the digest of what it asks; ValueError says why it is no
    request."""
    try:
        line: Any = json.loads(content)
    except (ValueError, RecursionError):
        raise ValueError("not JSON") from None
    if not isinstance(line, dict):
        raise ValueError("not a JSON object")
    custom_id = line.get("custom_id")
    if not isinstance(custom_id, str) or not 1 <= len(custom_id) <= MAX_ID_CHARS:
        raise ValueError(f"custom_id must be a string of 1 to {MAX_ID_CHARS} characters")
    if not is_unicode(custom_id):
        raise ValueError("custom_id has half of a surrogate pair, which no file can hold")
    if line.get("method") != "POST":
        raise ValueError('method must be "POST"')
    if line.get("url") not in PATHS:
        raise ValueError(f"url must be {' or '.join(PATHS)}")
    if not isinstance(line.get("body"), dict):
        raise ValueError("body must be a JSON object")
    if line["body"].get("stream"):
        raise ValueError("body.stream: leave it out, an answer is one line")
    if unknown := sorted(line.keys() - KEYS):
        raise ValueError(f"{unknown[0]!r} is no field of a line")
    asked = json.dumps([line["url"], line["body"]], sort_keys=True).encode()
    return custom_id, hashlib.sha256(asked).digest()[:DIGEST_BYTES]
