"""What a page of shared/articles holds: tables by their head, and what is written as code."""

import re
from collections.abc import Iterator

from tests.rules.sources import ROOT

FOLDER = ROOT / "shared/articles"
FIGURES = ("row", "figure", "formula", "value", "printed")
FORMULAS = ("function", "is", "asked of")
_SPAN = re.compile(r"`([^`]+)`")
_LINK = re.compile(r"\]\([^)]*\)")
_NAME = re.compile(r"\b(?:[A-Za-z][\w.-]*|\d+B\b|\d+-bit\b)")
"""words that may have digits in them: GPT-2, A100, fp16, 7B"""


def page(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def cells_of(line: str) -> tuple[str, ...]:
    return tuple(cell.strip() for cell in line.strip().strip("|").split(" | "))


def rows(text: str, head: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Of all tables with this head, in order."""
    found: list[tuple[str, ...]] = []
    inside = False
    for line in text.splitlines():
        if not line.startswith("|"):
            inside = False
        elif cells_of(line) == head:
            inside = True
        elif inside and not line.startswith("|---"):
            found.append(cells_of(line))
    return found


def spans(text: str) -> list[str]:
    """What is written as code in prose, cells and lists; what stands between fences is not."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return _SPAN.findall(prose)


def bare_numbers(text: str) -> Iterator[str]:
    """Numbers outside code, links and names."""
    plain = _NAME.sub("", _LINK.sub("]", _SPAN.sub("", text)))
    yield from (number.rstrip(".,") for number in re.findall(r"\d[\d.,]*", plain))
