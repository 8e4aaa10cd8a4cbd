"""Where in a JSON Schema something is wrong. A place is a JSON pointer, `#/properties/city`."""

import time
from collections.abc import Callable, Iterator
from typing import Any

from shared.errors import GrammarError
from shared.grammar.annotations import NAMED, VALUES

SEARCH_S = 0.2
"""how long the place of one mistake is looked for; what was found by then is told"""
ROOT = "#"
SHARED = ("$defs", "definitions")
"""what references of a part lead to"""
MAX_PLACE_CHARS = 120


def at_place(place: str, problem: str) -> GrammarError:
    """The error that says what is wrong there."""
    if place == ROOT:
        return GrammarError(problem)
    shown = "".join(char if char.isprintable() else "?" for char in place)
    if len(shown) > MAX_PLACE_CHARS:
        shown = shown[:MAX_PLACE_CHARS] + "..."
    return GrammarError(f"at {shown}: {problem}")


def placed_parts(schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object that may be a schema with its place, the outermost first."""
    yield from _parts(schema, ROOT)


def raise_at_place(schema: Any, compile_schema: Callable[[Any], None]) -> None:
    """GrammarError of the innermost part that does not compile by itself; nothing happens if all
    parts do. `compile_schema` raises GrammarError."""
    end_s = time.monotonic() + SEARCH_S
    shared = {name: schema[name] for name in SHARED if isinstance(schema, dict) and name in schema}
    found: GrammarError | None = None
    inside = ROOT
    for place, part in placed_parts(schema):
        if time.monotonic() > end_s:
            break
        if not (place == ROOT or place.startswith(f"{inside}/")) or _points_at_root(part):
            continue
        try:
            compile_schema({**shared, **part})
        except GrammarError as error:
            found, inside = at_place(place, str(error)), place
    if found is not None:
        raise found


def _parts(schema: Any, place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(schema, list):
        for index, item in enumerate(schema):
            yield from _parts(item, f"{place}/{index}")
    elif isinstance(schema, dict):
        yield place, schema
        for name, value in schema.items():
            below = f"{place}/{name.replace('~', '~0').replace('/', '~1')}"
            if name not in NAMED:
                yield from () if name in VALUES else _parts(value, below)
            elif isinstance(value, dict):
                for key, item in value.items():
                    yield from _parts(item, f"{below}/{key.replace('~', '~0').replace('/', '~1')}")


def _points_at_root(part: dict[str, Any]) -> bool:
    """Whether it refers to the whole, which it is not when it stands alone."""
    return any(
        isinstance(inner.get("$ref"), str)
        and not inner["$ref"].startswith(tuple(f"#/{name}/" for name in SHARED))
        for _, inner in placed_parts(part)
    )
