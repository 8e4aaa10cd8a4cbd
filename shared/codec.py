"""Frozen dataclasses to msgpack and back, every field checked on the way in.

A message is the array `[name, field, field, ...]` in the order of its dataclass fields. No
extension types, string keys only, never pickle: what is not one of the listed messages is a
ProtocolError that names the bad field.

Another release may have more fields or fewer, at the end of a message or of what is in it: those
that are not known here are ignored, and those that are missing have their defaults.

What comes once per token is a NamedTuple, which is several times cheaper to make. Long runs of
token ids are packed, 4 bytes each.

A decoder makes an object per byte at worst: 72 bytes of memory for each byte of a frame of empty
arrays, and room for every announced item before the items are there. So a codec that strangers
may reach has bounds on the items of an array and on all arrays of a frame.
"""

import sys
import types
import typing
from array import array
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from sys import intern
from typing import Annotated, Any, Literal

import msgpack

from shared.errors import ProtocolError, UnknownMessageError

PackedIds = Annotated[tuple[int, ...], "packed"]
"""token ids that travel as little-endian uint32; OverflowError from `encode` beyond that"""


class Codec:
    """Encodes and decodes the messages of one union type."""

    def __init__(
        self, message_types: tuple[type, ...], *, max_items: int = 0, max_arrays: int = 0
    ) -> None:
        """`max_items`: of one array or map. `max_arrays`: in one frame, which then has no map.
        0 is no limit but the frame's size."""
        self._by_name = {kind.__name__.lower(): kind for kind in message_types}
        self._max_arrays = max_arrays
        self._limits: dict[str, int] = {}
        if max_items:
            self._limits = {"max_array_len": max_items, "max_map_len": max_items}
        if max_arrays:
            self._limits["max_map_len"] = 0

    def encode(self, message: Any) -> bytes:
        """Frame body of one message, without a length prefix."""
        body: bytes = msgpack.packb([type(message).__name__.lower(), *_plain_fields(message)])
        return body

    def decode(self, body: bytes | memoryview) -> Any:
        """The message in a frame body. UnknownMessageError if its kind is not listed."""
        try:
            parts = msgpack.unpackb(
                body,
                strict_map_key=True,
                use_list=True,
                list_hook=_counter(self._max_arrays) if self._max_arrays else None,
                **self._limits,
            )
        except (ValueError, msgpack.UnpackException) as error:
            raise ProtocolError(f"not a msgpack frame: {error}") from None
        if not isinstance(parts, list) or not parts or not isinstance(parts[0], str):
            raise ProtocolError("a frame is an array that starts with the message's name")
        kind = self._by_name.get(parts[0])
        if kind is None:
            raise UnknownMessageError(f"unknown message {parts[0][:40]!r}")
        try:
            return _reader(kind)(parts[1:])
        except _MisfitError as misfit:
            raise ProtocolError(f"{parts[0]}{misfit.place}: {misfit.reason}") from None


def to_plain(value: Any) -> Any:
    """A dataclass as nested lists, ready for msgpack. A tuple or list that begins with a plain
    value has no dataclass in it."""
    if is_dataclass(value):
        return _plain_fields(value)
    if isinstance(value, tuple | list):
        if not value or isinstance(value[0], int | float | str | bytes):
            return value
        return [to_plain(item) for item in value]
    return value


def _plain_fields(message: Any) -> list[Any]:
    kind = message.__class__
    plain = [to_plain(getattr(message, name)) for name in field_names(kind)]
    for at in _packed_fields(kind):
        plain[at] = _pack(plain[at])
    return plain


@cache
def field_names(kind: Any) -> tuple[str, ...]:
    """Of a dataclass or a named tuple, in the order in which they travel."""
    if is_dataclass(kind):
        return tuple(item.name for item in fields(kind))
    return tuple(kind._fields)


def num_defaults(kind: Any) -> int:
    """How many fields of a dataclass or a named tuple have a default; they are its last ones."""
    if is_dataclass(kind):
        defaults = ((item.default, item.default_factory) for item in fields(kind))
        return sum(default != (MISSING, MISSING) for default in defaults)
    return len(kind._field_defaults)


@cache
def _packed_fields(kind: Any) -> tuple[int, ...]:
    """Places of the fields that are PackedIds."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return tuple(at for at, name in enumerate(field_names(kind)) if hints[name] == PackedIds)


def _pack(token_ids: tuple[int, ...]) -> bytes:
    words = array("I", token_ids)
    if sys.byteorder == "big":
        words.byteswap()
    return words.tobytes()


def _read_packed(value: Any) -> tuple[int, ...]:
    if type(value) is not bytes or len(value) % 4:
        raise _MisfitError("expected packed token ids")
    words = array("I", value)
    if sys.byteorder == "big":
        words.byteswap()
    return tuple(words)


def _counter(max_arrays: int) -> Callable[[list[Any]], list[Any]]:
    """Lets `max_arrays` arrays pass, then ends the decoding."""
    num_left = max_arrays

    def count(items: list[Any]) -> list[Any]:
        nonlocal num_left
        num_left -= 1
        if num_left < 0:
            raise ValueError(f"more than {max_arrays} arrays")
        return items

    return count


class _MisfitError(Exception):
    """A value that its annotation does not allow. `place`: where in the message, from inside
    out, put together only when it is needed."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.place = ""

    def within(self, name: str) -> "_MisfitError":
        self.place = f".{name}{self.place}"
        return self


Reader = Callable[[Any], Any]


@cache
def _reader(hint: Any) -> Reader:
    """A function that checks a decoded value against a type annotation and returns it."""
    if hint == PackedIds:
        return _read_packed
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    by_origin: dict[Any, Callable[[tuple[Any, ...]], Reader]] = {
        tuple: _tuple_reader,
        dict: _dict_reader,
        Literal: _choice_reader,
        typing.Union: _union_reader,
        types.UnionType: _union_reader,
    }
    if origin in by_origin:
        return by_origin[origin](args)
    if is_dataclass(hint) or (isinstance(hint, type) and issubclass(hint, tuple)):
        return _fields_reader(hint)
    return _scalar_reader(hint)


def _fields_reader(kind: Any) -> Reader:
    names = field_names(kind)
    hints = typing.get_type_hints(kind, include_extras=True)
    readers = tuple(_reader(hints[name]) for name in names)
    num_needed = len(names) - num_defaults(kind)

    def read(value: Any) -> Any:
        if type(value) is not list or len(value) < num_needed:
            raise _MisfitError(f"expected at least {num_needed} fields")
        done: list[Any] = []
        try:
            for read_field, item in zip(readers, value, strict=False):
                done.append(read_field(item))
        except _MisfitError as misfit:
            raise misfit.within(names[len(done)]) from None
        return kind(*done)

    return read


def _scalar_reader(hint: Any) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is hint:
            return value
        if hint is float and type(value) is int:
            return float(value)
        raise _MisfitError(f"expected {hint.__name__}, got {type(value).__name__}")

    return read


def _choice_reader(choices: tuple[Any, ...]) -> Reader:
    def read(value: Any) -> Any:
        if value in choices:
            return value
        raise _MisfitError(f"not one of {', '.join(map(repr, choices))}")

    return read


def _tuple_reader(args: tuple[Any, ...]) -> Reader:
    if len(args) == 2 and args[1] is Ellipsis:
        scalar = args[0] if args[0] in (int, str, bytes) else None
        read_item = _reader(args[0])

        def read_run(value: Any) -> Any:
            if type(value) is not list:
                raise _MisfitError("expected an array")
            if not value:
                return ()
            if scalar is not None and set(map(type, value)) <= {scalar}:
                return tuple(value)
            return tuple(map(read_item, value))

        return read_run
    readers = tuple(_reader(arg) for arg in args)

    def read_fixed(value: Any) -> Any:
        if type(value) is not list or len(value) != len(readers):
            raise _MisfitError(f"expected {len(readers)} items")
        return tuple(read(item) for read, item in zip(readers, value, strict=True))

    return read_fixed


def _dict_reader(args: tuple[Any, ...]) -> Reader:
    read_value = _reader(args[1])

    def read(value: Any) -> Any:
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise _MisfitError("expected a map with string keys")
        done: dict[str, Any] = {}
        for key, item in value.items():
            try:
                done[intern(key)] = read_value(item)
            except _MisfitError as misfit:
                raise misfit.within(key[:40]) from None
        return done

    return read


def _union_reader(args: tuple[Any, ...]) -> Reader:
    readers = tuple(_reader(arg) for arg in args if arg is not types.NoneType)
    may_be_none = types.NoneType in args

    def read(value: Any) -> Any:
        if value is None and may_be_none:
            return None
        for read_one in readers:
            try:
                return read_one(value)
            except _MisfitError:
                continue
        raise _MisfitError("no allowed type fits")

    return read
