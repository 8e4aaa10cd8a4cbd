"""Frozen dataclasses to msgpack and back, every field checked on the way in.

A message is the array `[name, field, field, ...]` in the order of its dataclass fields. No
extension types, string keys only, never pickle: what is not exactly one of the listed
messages is a ProtocolError that names the bad field.

What comes once per token is a NamedTuple, which is several times cheaper to make.
"""

import types
import typing
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from sys import intern
from typing import Any, Literal

import msgpack

from shared.errors import ProtocolError


class Codec:
    """Encodes and decodes the messages of one union type."""

    def __init__(self, message_types: tuple[type, ...]) -> None:
        self._by_name = {kind.__name__.lower(): kind for kind in message_types}

    def encode(self, message: Any) -> bytes:
        """Frame body of one message, without a length prefix."""
        body: bytes = msgpack.packb([type(message).__name__.lower(), *_plain_fields(message)])
        return body

    def decode(self, body: bytes | memoryview) -> Any:
        """The message in a frame body."""
        try:
            parts = msgpack.unpackb(body, strict_map_key=True, use_list=True)
        except (ValueError, msgpack.UnpackException) as error:
            raise ProtocolError(f"not a msgpack frame: {error}") from None
        if not isinstance(parts, list) or not parts or not isinstance(parts[0], str):
            raise ProtocolError("a frame is an array that starts with the message's name")
        kind = self._by_name.get(parts[0])
        if kind is None:
            raise ProtocolError(f"unknown message {parts[0][:40]!r}")
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
    return [to_plain(getattr(message, name)) for name in _field_names(message.__class__)]


@cache
def _field_names(kind: Any) -> tuple[str, ...]:
    return tuple(item.name for item in fields(kind))


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
    if is_dataclass(hint):
        return _fields_reader(_field_names(typing.cast(type, hint)), hint)
    if isinstance(hint, type) and issubclass(hint, tuple):
        return _fields_reader(hint._fields, hint)  # type: ignore[attr-defined]
    return _scalar_reader(hint)


def _fields_reader(names: tuple[str, ...], kind: Any) -> Reader:
    hints = typing.get_type_hints(kind)
    readers = tuple(_reader(hints[name]) for name in names)

    def read(value: Any) -> Any:
        if type(value) is not list or len(value) != len(readers):
            raise _MisfitError(f"expected {len(readers)} fields")
        done: list[Any] = []
        try:
            for read_field, item in zip(readers, value, strict=True):
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
