"""Reads the text files under corpus/ into the facts that the generators draw from."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

CORPUS = Path(__file__).parents[1] / "corpus"
ENTRY_FILES = ("baton.txt", "facts.txt", "smalltalk.txt")


@dataclass(frozen=True)
class Entry:
    """Something the model can talk about: names, questions, a short and several long answers."""

    source: str
    topics: tuple[str, ...]
    questions: tuple[str, ...]
    short_answer: str
    long_answers: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A relation: question and answer forms with {0} and {1}, and its rows."""

    name: str
    questions: tuple[str, ...]
    answer: str
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class OffTopic:
    """Questions the model must not pretend to answer, with {x} for the subject."""

    questions: tuple[str, ...]
    answers: tuple[str, ...]
    subjects: tuple[str, ...]


def _lines(name: str) -> list[str]:
    lines = (CORPUS / name).read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if not line.startswith("#")]


def _marked(lines: list[str], mark: str) -> tuple[str, ...]:
    return tuple(line[1:].strip().replace("\\n", "\n") for line in lines if line.startswith(mark))


def _cells(line: str) -> tuple[str, ...]:
    return tuple(cell.strip() for cell in line.split("|"))


def _entry(name: str, lines: list[str]) -> Entry:
    topics = tuple(topic.strip() for line in _marked(lines, "@") for topic in line.split(";"))
    short = _marked(lines, "=")
    return Entry(name, topics, _marked(lines, "?"), short[0] if short else "", _marked(lines, "+"))


@cache
def entries() -> tuple[Entry, ...]:
    """All entries of the question-and-answer files; a blank line ends an entry."""
    found = []
    for name in ENTRY_FILES:
        paragraphs = "\n".join(_lines(name)).strip().split("\n\n")
        found += [_entry(name, p.splitlines()) for p in paragraphs if p.strip()]
    return tuple(found)


@cache
def sections(name: str) -> dict[str, list[str]]:
    """The lines of a file with `[section]` headings, by heading; blank lines dropped."""
    result: dict[str, list[str]] = {}
    current: list[str] = []
    for line in _lines(name):
        if line.startswith("["):
            current = result.setdefault(line[1:-1], [])
        elif line:
            current.append(line)
    return result


@cache
def tables() -> tuple[Table, ...]:
    """All tables; a row `@other` means the rows of the table of that name."""
    result: list[Table] = []
    for name, lines in sections("tables.txt").items():
        rows = tuple(_cells(line) for line in lines if line[0] not in "?=@")
        for other in _marked(lines, "@"):
            rows += next(table.rows for table in result if table.name == other)
        result.append(Table(name, _marked(lines, "?"), _marked(lines, "=")[0], rows))
    return tuple(result)


@cache
def off_topic() -> OffTopic:
    """The questions outside the model's small world."""
    lines = _lines("topics.txt")
    subjects = lines[lines.index("---") + 1 :]
    return OffTopic(_marked(lines, "?"), _marked(lines, "+"), tuple(filter(None, subjects)))


@cache
def words() -> tuple[str, ...]:
    """The words the model can sort and spell."""
    return tuple(sorted(set(" ".join(_lines("words.txt")).split())))


@cache
def sentences() -> tuple[str, ...]:
    """English sentences of the entries, for the copy task."""
    text = " ".join(answer for entry in entries() for answer in entry.long_answers)
    parts = text.replace("\n", " ").replace("? ", "?|").replace(". ", ".|").split("|")
    return tuple(sorted({part for part in parts if 3 <= len(part.split()) <= 22}))
