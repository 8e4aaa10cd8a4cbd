"""Text of a client, made fit to be named in an error."""

SHOWN_CHARS = 64


def shown(text: str) -> str:
    """Short, printable, no lone surrogates."""
    kept = "".join(char if char.isprintable() else "?" for char in text[:SHOWN_CHARS])
    kept = kept.encode("utf-8", "replace").decode()
    return kept + ("..." if len(text) > SHOWN_CHARS else "")
