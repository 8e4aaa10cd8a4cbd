"""What runs now, as one line of the error output that the next one replaces on a terminal."""

import sys

_CLEAR = "\r\x1b[K"


def show(text: str) -> None:
    """For a terminal only."""
    if sys.stderr.isatty():
        _write(f"{_CLEAR}{text}")


def announce(text: str) -> None:
    """A line of its own where there is no terminal, as in the log of a CI job."""
    if sys.stderr.isatty():
        show(text)
    else:
        _write(f"{text}\n")


def keep(text: str) -> None:
    """A line that stays."""
    clear()
    _write(f"{text}\n")


def clear() -> None:
    """Before anything else is written."""
    show("")


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
