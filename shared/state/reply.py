"""Redis replies as types: what RESP2 can carry, and checked ways to narrow it."""

from typing import TypeAlias

from shared.errors import ProtocolError

Reply: TypeAlias = int | bytes | list["Reply"] | None
"""an integer, a string, nil or an array of these; errors are raised"""


def as_int(reply: Reply) -> int:
    """An integer, also one that arrives as decimal text (a hash field, a score)."""
    if isinstance(reply, int):
        return reply
    try:
        return int(as_bytes(reply))
    except ValueError:
        raise ProtocolError(f"redis: expected an integer, got {reply!r:.60}") from None


def as_bytes(reply: Reply) -> bytes:
    if not isinstance(reply, bytes):
        raise ProtocolError(f"redis: expected a string, got {type(reply).__name__}")
    return reply


def as_text(reply: Reply) -> str:
    return as_bytes(reply).decode()


def as_list(reply: Reply) -> list[Reply]:
    if not isinstance(reply, list):
        raise ProtocolError(f"redis: expected an array, got {type(reply).__name__}")
    return reply


def as_fields(reply: Reply) -> dict[str, Reply]:
    """A flat [name, value, name, value, ...] array, as HGETALL and streams answer."""
    items = as_list(reply)
    return {as_text(name): value for name, value in zip(items[::2], items[1::2], strict=True)}
