"""A table for a terminal."""

from collections.abc import Sequence


def aligned(cells: Sequence[Sequence[str]]) -> str:
    """A line for each row: its name, then its cells to the right of their columns."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    text = ""
    for name, *others in cells:
        padded = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        text += "  ".join([name.ljust(widths[0]), *padded]) + "\n"
    return text
