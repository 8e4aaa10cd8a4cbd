"""Text of a client, made fit to be named in an error."""

from collections.abc import Sequence

SHOWN_CHARS = 64


def shown(text: str) -> str:
    """Short, printable, no lone surrogates."""
    kept = "".join(char if char.isprintable() else "?" for char in text[:SHOWN_CHARS])
    kept = kept.encode("utf-8", "replace").decode()
    return kept + ("..." if len(text) > SHOWN_CHARS else "")


def is_unicode(text: str) -> bool:
    """No half of a surrogate pair alone, which nobody can write as UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def listed(names: Sequence[str], most: int) -> str:
    """`a, b, c`, or the first of them and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
