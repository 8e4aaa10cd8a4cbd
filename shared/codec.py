"""Frozen dataclasses to msgpack and back, every field checked on the way in.

A message is the array `[name, field, field, ...]` in the order of its dataclass fields. No
extension types, string keys only, never pickle: what is not exactly one of the listed
messages is a ProtocolError that names the bad field.
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
        return _build(kind, parts[1:], parts[0])


def to_plain(value: Any) -> Any:
    """A dataclass as nested lists, ready for msgpack."""
    if is_dataclass(value):
        return _plain_fields(value)
    if isinstance(value, tuple | list):
        if not value or isinstance(value[0], int | float | str | bytes):
            return value
        return [to_plain(item) for item in value]
    return value


def _plain_fields(message: Any) -> list[Any]:
    return [to_plain(getattr(message, name)) for name, _ in _field_readers(message.__class__)]


def _build(kind: type, values: Any, where: str) -> Any:
    readers = _field_readers(kind)
    if not isinstance(values, list) or len(values) != len(readers):
        raise ProtocolError(f"{where}: expected {len(readers)} fields")
    return kind(
        *(
            read(value, f"{where}.{name}")
            for (name, read), value in zip(readers, values, strict=True)
        )
    )


Reader = Callable[[Any, str], Any]


@cache
def _field_readers(kind: Any) -> tuple[tuple[str, Reader], ...]:
    hints: dict[str, Any] = typing.get_type_hints(kind)
    return tuple((f.name, _reader(hints[f.name])) for f in fields(kind))


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
        return lambda value, where: _build(typing.cast(type, hint), value, where)
    if isinstance(hint, type) and issubclass(hint, tuple):
        return _named_tuple_reader(hint)
    return _scalar_reader(hint)


def _scalar_reader(hint: Any) -> Reader:
    def read(value: Any, where: str) -> Any:
        if type(value) is hint:
            return value
        if hint is float and type(value) is int:
            return float(value)
        if hint is type(None) and value is None:
            return None
        raise ProtocolError(f"{where}: expected {hint.__name__}, got {type(value).__name__}")

    return read


def _choice_reader(choices: tuple[Any, ...]) -> Reader:
    def read(value: Any, where: str) -> Any:
        if value in choices:
            return value
        raise ProtocolError(f"{where}: not one of {', '.join(map(repr, choices))}")

    return read


def _tuple_reader(args: tuple[Any, ...]) -> Reader:
    if len(args) == 2 and args[1] is Ellipsis:
        scalar = args[0] if args[0] in (int, str, bytes) else None
        read_item = _reader(args[0])

        def read_run(value: Any, where: str) -> Any:
            if not isinstance(value, list):
                raise ProtocolError(f"{where}: expected an array")
            if scalar is not None and set(map(type, value)) <= {scalar}:
                return tuple(value)
            return tuple(read_item(item, where) for item in value)

        return read_run
    readers = tuple(_reader(arg) for arg in args)

    def read_fixed(value: Any, where: str) -> Any:
        if not isinstance(value, list) or len(value) != len(readers):
            raise ProtocolError(f"{where}: expected {len(readers)} items")
        return tuple(read(item, where) for read, item in zip(readers, value, strict=True))

    return read_fixed


def _named_tuple_reader(kind: type) -> Reader:
    read_fields = _tuple_reader(tuple(typing.get_type_hints(kind).values()))
    return lambda value, where: kind(*read_fields(value, where))


def _dict_reader(args: tuple[Any, ...]) -> Reader:
    read_value = _reader(args[1])

    def read(value: Any, where: str) -> Any:
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise ProtocolError(f"{where}: expected a map with string keys")
        return {intern(key): read_value(item, f"{where}.{key[:40]}") for key, item in value.items()}

    return read


def _union_reader(args: tuple[Any, ...]) -> Reader:
    readers = tuple(_reader(arg) for arg in args)

    def read(value: Any, where: str) -> Any:
        for reader in readers:
            try:
                return reader(value, where)
            except ProtocolError:
                continue
        raise ProtocolError(f"{where}: no allowed type fits")

    return read
