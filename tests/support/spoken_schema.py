"""What each version of the protocol says, field by field, and what may become of it.

`python -m tests.support.spoken_schema` writes what is said now to `tests/unit/link/spoken/N.txt`,
N the newest version, if the rules of CONTRIBUTING.md allow it. Exit status 1 if they do not.
"""

import re
import sys
import typing
from collections.abc import Iterable
from pathlib import Path

from shared.codec import field_names, num_defaults
from shared.protocol import SPOKEN, Message, Sampling
from shared.state.registry import WorkerEntry
from shared.transfer.frames import Frame
from tests.rules.sent_words import with_parts

FOLDER = Path(__file__).parents[1] / "unit/link/spoken"
KINDS: tuple[type, ...] = (*typing.get_args(Message), *typing.get_args(Frame), WorkerEntry)

EXACT = (Sampling.__name__,)
"""a worker that ignores a part of one gives another answer"""

Schema = dict[str, list[str]]
"""message or part of one -> its fields, each as `name: type`, with ` =` if it has a default"""


def schema_of(kinds: Iterable[type] = KINDS) -> Schema:
    return {kind.__name__: _fields(kind) for kind in sorted(with_parts(kinds), key=_name)}


def objections(before: Schema, now: Schema, *, same_version: bool = True) -> list[str]:
    """What in `now` a peer that says `before` would misread, or say and not be understood.

    A choice of another version may have more words: its peers are not told those."""
    found = [
        f"{kind} has more fields, and none of it may be ignored"
        for kind in EXACT
        if same_version and len(now.get(kind, [])) > len(before.get(kind, []))
    ]
    for kind, fields in before.items():
        said = now.get(kind)
        if said is None:
            found.append(f"{kind} is gone")
            continue
        for number, field in enumerate(fields):
            if number >= len(said) or not _reads(said[number], field, same_version):
                there = said[number] if number < len(said) else "nothing"
                found.append(f"{kind}: `{there}` is where `{field}` was")
        found += [
            f"{kind}: `{field}` is new and has no default"
            for field in said[len(fields) :]
            if not field.endswith(" =")
        ]
    return found


def read_schema(version: int) -> Schema:
    lines = (FOLDER / f"{version}.txt").read_text().splitlines()
    schema: Schema = {}
    for line in lines:
        if line.startswith("    "):
            schema[next(reversed(schema))].append(line.strip())
        else:
            schema[line] = []
    return schema


def text_of(schema: Schema) -> str:
    return "".join(
        f"{kind}\n" + "".join(f"    {field}\n" for field in fields)
        for kind, fields in schema.items()
    )


def all_objections(now: Schema) -> list[str]:
    """Against every version that is spoken and written down."""
    found = []
    for version in range(SPOKEN.oldest, SPOKEN.newest + 1):
        if (FOLDER / f"{version}.txt").exists():
            same = version == SPOKEN.newest
            wrong = objections(read_schema(version), now, same_version=same)
            found += [f"version {version}: {text}" for text in wrong]
    return found


def _fields(kind: type) -> list[str]:
    names, hints = field_names(kind), typing.get_type_hints(kind, include_extras=True)
    num_needed = len(names) - num_defaults(kind)
    return [
        f"{name}: {_type_name(hints[name])}{' =' if at >= num_needed else ''}"
        for at, name in enumerate(names)
    ]


def _name(kind: type) -> str:
    return kind.__name__


def _type_name(hint: object) -> str:
    text = hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else repr(hint)
    return re.sub(r"\b(?:typing|shared(?:\.\w+)+)\.", "", text)


_WORDS = re.compile(r"Literal\[([^\]]*)\]")


def _reads(now: str, before: str, same_version: bool) -> bool:
    """Whether one may stand where the other was."""
    if now in (before, f"{before} ="):
        return True
    words_before, words = (set(re.findall(r"'[^']*'", text)) for text in (before, now))
    widened = not same_version and words_before <= words
    alike = [_WORDS.sub("", text) for text in (before, now)]
    return widened and alike[1] in (alike[0], f"{alike[0]} =")


def main() -> int:
    now = schema_of()
    if wrong := all_objections(now):
        wrong.append("CONTRIBUTING.md says what may change: How to add, a message")
        sys.stderr.write("\n".join(wrong) + "\n")
        return 1
    (FOLDER / f"{SPOKEN.newest}.txt").write_text(text_of(now))
    return 0


if __name__ == "__main__":
    sys.exit(main())
