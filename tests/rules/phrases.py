"""Phrases that a native engineer would not write, in docstrings, comments, messages and READMEs.

Each has a plain form that its message names. Code is not looked at: a name may be any word.
"""

import io
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from tests.rules.sources import ROOT, Source, Violation

PEOPLE = (
    frozenset({"those", "people", "person", "one", "ones", "few", "others", "nobody"})
    | {"anyone", "anybody", "someone", "somebody", "everyone", "everybody"}
    | {"client", "clients", "user", "users", "reader", "readers", "engineer", "newcomer"}
)
"""words that `who` may follow; a worker, a request or a process is a `which` or a `that`"""
STORIES = ("shared/demo_model/recipe/",)
"""texts that a model learns; their `who` is a fox"""
_WHO = re.compile(r"(?:([\w'-]+),?\s+)?\bwho\s+[a-z](?![^.;\n]*\?)", re.IGNORECASE)
_TEXTS = ("*.md", "*.lua", "*.yaml", "*.tpl", "*.Dockerfile", "NOTES.txt")
_TOP = ("README.md", "CONTRIBUTING.md", "Makefile", "pyproject.toml", ".ci/run")
_ROOMS = ("docker", "helm", "kernels", "services", "shared", "tests")
_LEADER = re.compile(r"^(\s*)(#|--)", re.MULTILINE)


def _any(pattern: str) -> Callable[[str], Iterator[int]]:
    """Where a pattern begins."""
    compiled = re.compile(pattern, re.IGNORECASE)
    return lambda text: (match.start() for match in compiled.finditer(text))


def _who_without_people(text: str) -> Iterator[int]:
    for match in _WHO.finditer(text):
        if (match[1] or "").lower() not in PEOPLE:
            yield match.start()


PHRASES: dict[str, Callable[[str], Iterator[int]]] = {
    "'who' has no people before it: name the thing, or say 'whoever'": _who_without_people,
    "say N, or name the number": _any(r"\bso\s+many\b(?!(?:\s+[\w'-]+){0,6}\s+that\b)"),
    "say 'again' or 'from scratch'": _any(r"\banew\b"),
    "say 'forever'": _any(r"\bfor\s+ever\b"),
    "say 'next to', 'besides', 'during' or 'compared with'": _any(r"""(?<!['"])\bbeside\b(?!\()"""),
}
"""what to write instead -> the places to write it"""


def check(files: Iterable[Source]) -> list[Violation]:
    return [problem for source in files for problem in _check_file(source)]


def _check_file(source: Source) -> Iterator[Violation]:
    if source.path.startswith(STORIES):
        return
    text = _prose(source.text) if source.path.endswith(".py") else source.text
    text = _LEADER.sub(r"\1 ", text)
    for advice, places in PHRASES.items():
        for place in places(text):
            line = text.count("\n", 0, place) + 1
            yield Violation(source.path, line, "phrase", advice)


def _prose(code: str) -> str:
    """Strings and comments where they were; each other character is a mark."""
    lines = [re.sub(r"\S", "\0", line) for line in code.splitlines(keepends=True)]
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.COMMENT or "STRING" in tokenize.tok_name[token.type]:
            (row, column), shown = token.start, token.string
            for number, part in enumerate(shown.splitlines(keepends=True), start=row - 1):
                line, begin = lines[number], column if number == row - 1 else 0
                lines[number] = line[:begin] + part + line[begin + len(part) :]
    return "".join(lines)


def texts() -> Iterator[Source]:
    """What is written for people and is no Python."""
    rooms = ((ROOT / room).rglob(pattern) for room in _ROOMS for pattern in _TEXTS)
    for path in chain((ROOT / name for name in _TOP), *rooms):
        yield Source(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
