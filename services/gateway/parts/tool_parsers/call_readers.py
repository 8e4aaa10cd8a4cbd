"""Readers of one call, given the text from where it may begin.

Arguments are passed on as they come, so what is wrong with them later cannot be taken back: a
call whose beginning is right stays a call, with the arguments it got.
"""

import json
from collections.abc import Sequence
from typing import Any, Protocol

from services.gateway.parts.part import CallArguments, CallEnd, CallStart, Part
from services.gateway.parts.tool_parsers.json_scan import JsonScan

ARGUMENT_KEYS = ("arguments", "parameters")
KNOWN_KEYS = frozenset({"name", "id", "type", "function", *ARGUMENT_KEYS})
"""an object with another key in front of its arguments is no call"""


class CallReader(Protocol):
    """Reads one call."""

    begun: bool
    """it is a call"""
    ended: bool
    broken: bool
    """it is no call"""

    @property
    def raw(self) -> str:
        """Everything read; content if this is no call."""

    def push(self, text: str) -> tuple[Sequence[Part], str]:
        """The parts in `text`, and the text that is not the call's."""


class ObjectReader:
    """{"name": ..., "arguments": {...}}; the arguments may be called parameters, and may come
    first, in which case they wait for the name."""

    def __init__(self, index: int, names: frozenset[str]) -> None:
        self._index = index
        self._names = names
        self._scan = JsonScan()
        self._read: list[str] = []
        self._string: list[str] = []
        """JSON of the last string at the object's own level"""
        self._key = ""
        self._at_arguments = False
        self._in_arguments = False
        self.begun = False
        self.ended = False
        self.broken = False

    @property
    def raw(self) -> str:
        return "".join(self._read)

    def push(self, text: str) -> tuple[Sequence[Part], str]:
        parts: list[Part] = []
        while text and not (self.ended or self.broken):
            if not self.begun:
                text = self._read_head(text, parts)
            elif self._in_arguments:
                text = self._read_arguments(text, parts)
            else:
                text = self._read_rest(text, parts)
        return parts, text

    def _read_head(self, text: str, parts: list[Part]) -> str:
        """Up to the first character of the arguments, or the end of an object whose order or
        kind of arguments only shows its call as a whole."""
        for at, char in enumerate(text):
            if self._scan.depth == 0 and char.isspace():
                self._read.append(char)
                continue
            self._follow(char)
            if self.broken:
                return text[at if self._scan.broken else at + 1 :]
            if self._begins_arguments(char):
                self.begun = self._in_arguments = True
                parts += [
                    CallStart(self._index, self._head_name()),
                    CallArguments(self._index, char),
                ]
                return text[at + 1 :]
            if self._scan.depth == 0:
                self._read_whole(parts)
                return text[at + 1 :]
        return ""

    def _follow(self, char: str) -> None:
        """One more character of the head; `broken` if no call can have it here."""
        was_in_string, depth = self._scan.in_string, self._scan.depth
        self._scan.push(char)
        if self._scan.broken:
            self.broken = True
            return
        self._read.append(char)
        if depth != 1:
            return
        if self._scan.in_string or was_in_string:
            if not was_in_string:
                self._string.clear()
            self._string.append(char)
        elif char == ":":
            self._key = self._last_string()
            self.broken = self._key not in KNOWN_KEYS
            self._at_arguments = self._key in ARGUMENT_KEYS
        elif char == "," and self._key == "name":
            self.broken = self._last_string() not in self._names

    def _begins_arguments(self, char: str) -> bool:
        if not self._at_arguments or char.isspace() or char == ":":
            return False
        self._at_arguments = False
        return char == "{" and self._head_name() in self._names

    def _head_name(self) -> str:
        """The name in a head that ends with the bracket of its arguments; "" if it has none."""
        head = _loaded(self.raw[:-1] + "null}")
        name = head.get("name") if isinstance(head, dict) else None
        return name if isinstance(name, str) else ""

    def _last_string(self) -> str:
        value = _loaded("".join(self._string))
        return value if isinstance(value, str) else ""

    def _read_whole(self, parts: list[Part]) -> None:
        call = _loaded(self.raw)
        name = call.get("name") if isinstance(call, dict) else None
        arguments = _arguments(call) if isinstance(call, dict) else None
        if not isinstance(name, str) or name not in self._names or arguments is None:
            self.broken = True
            return
        self.begun = True
        parts += [CallStart(self._index, name), CallArguments(self._index, arguments)]
        self._end(parts)

    def _read_arguments(self, text: str, parts: list[Part]) -> str:
        size = self._scan.take(text, depth=1)
        if size:
            parts.append(CallArguments(self._index, text[:size]))
        if self._scan.broken:
            self._end(parts)
        self._in_arguments = self._scan.depth > 1
        return text[size:]

    def _read_rest(self, text: str, parts: list[Part]) -> str:
        """What follows the arguments up to the object's bracket; nobody needs it."""
        size = self._scan.take(text, depth=0)
        if self._scan.broken or self._scan.depth == 0:
            self._end(parts)
        return text[size:]

    def _end(self, parts: list[Part]) -> None:
        self.ended = True
        parts.append(CallEnd(self._index))


class ArgumentsReader:
    """{...}, the arguments of a call whose name was read before."""

    def __init__(self, index: int, name: str) -> None:
        self._index = index
        self._name = name
        self._scan = JsonScan()
        self.begun = False
        self.ended = False
        self.broken = False
        self.raw = ""

    def push(self, text: str) -> tuple[Sequence[Part], str]:
        parts: list[Part] = []
        if not self.begun:
            self.begun = True
            parts.append(CallStart(self._index, self._name))
        size = self._scan.take(text, depth=0)
        if size:
            parts.append(CallArguments(self._index, text[:size]))
        if self._scan.broken or (size and self._scan.depth == 0):
            self.ended = True
            parts.append(CallEnd(self._index))
        return parts, text[size:]


def _arguments(call: dict[str, Any]) -> str | None:
    """JSON text of a whole call's arguments; None if they are no object."""
    value: Any = next((call[key] for key in ARGUMENT_KEYS if key in call), {})
    if isinstance(value, str):
        return value if isinstance(_loaded(value), dict) else None
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else None


def _loaded(text: str) -> Any:
    """The JSON value, None if it is none. Models write raw newlines into strings."""
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None
