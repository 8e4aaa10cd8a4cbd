"""The terminal that a command writes to."""

import os
import shutil
import sys
import textwrap

MIN_WIDTH = 20
"""characters a line gets however narrow the terminal is"""


def terminal_width() -> int | None:
    """Characters in a line; None where the output is no terminal, which may have any length."""
    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        return None
    return max(shutil.get_terminal_size().columns, MIN_WIDTH)


def wrapped(text: str, width: int | None, indent: int = 2) -> str:
    """`text` in lines of at most `width` characters, the later ones indented."""
    if width is None or len(text) <= width:
        return text
    indented = " " * indent  # a flag or an id stays whole: a line does not end at its hyphen
    return textwrap.fill(text, width, subsequent_indent=indented, break_on_hyphens=False)
