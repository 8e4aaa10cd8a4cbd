"""Redis replies as types: what RESP2 can carry, and checked ways to narrow it.

A reply that is something else is StateUnavailableError: somebody else wrote there, or it is not
our Redis that answers; it may be put right.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

from shared.errors import StateUnavailableError

Reply: TypeAlias = int | bytes | list["Reply"] | None
"""an integer, a string, nil or an array of these; errors are raised"""


@contextmanager
def narrowing() -> Iterator[None]:
    """In it, a value or a number of values that nobody expects is StateUnavailableError too."""
    try:
        yield
    except (ValueError, LookupError) as error:
        raise StateUnavailableError(f"redis: not what was asked for: {error!r:.80}") from error


def as_int(reply: Reply) -> int:
    """An integer, also one that arrives as decimal text (a hash field, a score)."""
    if isinstance(reply, int):
        return reply
    try:
        return int(as_bytes(reply))
    except ValueError:
        raise StateUnavailableError(f"redis: expected an integer, got {reply!r:.60}") from None


def as_bytes(reply: Reply) -> bytes:
    if not isinstance(reply, bytes):
        raise StateUnavailableError(f"redis: expected a string, got {type(reply).__name__}")
    return reply


def as_text(reply: Reply) -> str:
    try:
        return as_bytes(reply).decode()
    except UnicodeDecodeError:
        raise StateUnavailableError(f"redis: expected text, got {reply!r:.60}") from None


def as_list(reply: Reply) -> list[Reply]:
    if not isinstance(reply, list):
        raise StateUnavailableError(f"redis: expected an array, got {type(reply).__name__}")
    return reply


def as_fields(reply: Reply) -> dict[str, Reply]:
    """A flat [name, value, name, value, ...] array, as HGETALL and streams answer."""
    items = as_list(reply)
    if len(items) % 2:
        raise StateUnavailableError("redis: a field without a value")
    return {as_text(name): value for name, value in zip(items[::2], items[1::2], strict=True)}
