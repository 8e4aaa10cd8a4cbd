"""What is wrong with a JSON Schema before any compiler sees it.

A compiler accepts a schema that refers to itself without end; no output would ever complete it.
Whatever this cannot judge it lets pass.
"""

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from shared.errors import GrammarError
from shared.grammar.places import at_place, placed_parts

MAX_DEPTH = 64

_TERM = re.compile(r"%json\s*(?=[{\[tf])")
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)
_ATOM = r"(?:\\.|\[(?:\\.|[^\]\\])*+\]|[^()\[\]\\|*+?{])"
_NESTED_REPEAT = re.compile(rf"\((?:\?:)?{_ATOM}[*+]\)(?:[*+]|\{{\d+,\}})")
"""(a+)+ and the like: as many ways to match as there are ways to cut a run of a's in pieces"""


def check_depth(text: str) -> None:
    """GrammarError beyond MAX_DEPTH levels of brackets: parsers recurse once per level."""
    depth = 0
    for match in _BRACKETS.finditer(text):
        found = match.group()
        depth += (found in "[{") - (found in "]}")
        if depth > MAX_DEPTH:
            raise GrammarError(f"more than {MAX_DEPTH} levels of nesting")


def schemas_in(grammar: str) -> Iterator[Any]:
    """The JSON Schemas of a grammar. What is no JSON is left to the compiler."""
    decoder = json.JSONDecoder()
    at = 0
    while found := _TERM.search(grammar, at):
        at = found.end()
        try:
            schema, at = decoder.raw_decode(grammar, at)
        except json.JSONDecodeError:
            continue
        yield schema


def check_schema(schema: Any) -> None:
    """GrammarError says what is wrong."""
    for place, part in placed_parts(schema):
        target = part.get("$ref")
        if isinstance(target, str) and "://" in target:
            raise at_place(place, "$ref to another document is not followed")
        patterns = [part.get("pattern"), *_object(part.get("patternProperties"))]
        for pattern in patterns:
            if isinstance(pattern, str) and _NESTED_REPEAT.search(pattern):
                raise at_place(place, "a pattern repeats a repeat, as in (a+)+")
    if not _has_finite_value(schema):
        raise GrammarError("no finite JSON value matches the schema")


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    return (part for _, part in placed_parts(schema))


def _has_finite_value(schema: Any) -> bool:
    """By the least fixpoint over all references: nothing is finite until it is shown to be.

    The order of the passes alternates, so that a chain of references takes two of them.
    """
    references = {part["$ref"] for part in _parts(schema) if isinstance(part.get("$ref"), str)}
    targets = {name: _resolve(schema, name) for name in sorted(references)}
    finite = dict.fromkeys(targets, False)
    names = list(targets)
    changed = True
    while changed:
        changed = False
        for name in names:
            if not finite[name] and _is_finite(targets[name], finite):
                finite[name] = changed = True
        names.reverse()
    return _is_finite(schema, finite)


def _is_finite(schema: Any, finite: dict[str, bool]) -> bool:
    """Whether a value is known to match, given what is known of the references."""
    if not isinstance(schema, dict):
        return schema is not False
    return _is_composed(schema, finite) and _is_finite_kind(schema, finite)


def _is_composed(schema: dict[str, Any], finite: dict[str, bool]) -> bool:
    """Whether its reference, all of its allOf, and one each of its anyOf and oneOf are finite."""
    reference = schema.get("$ref")
    if isinstance(reference, str) and not finite.get(reference, True):  # True: out of a value
        return False
    choices = [_list(schema.get(name)) for name in ("anyOf", "oneOf")]
    return all(_is_finite(item, finite) for item in _list(schema.get("allOf"))) and all(
        not items or any(_is_finite(item, finite) for item in items) for items in choices
    )


def _is_finite_kind(schema: dict[str, Any], finite: dict[str, bool]) -> bool:
    """The same for what the schema itself says of its values."""
    if "enum" in schema or "const" in schema:
        return schema.get("enum") != []
    kinds = schema.get("type")
    kinds = {kinds} if isinstance(kinds, str) else set(map(str, _list(kinds)))
    if not kinds or kinds - {"array", "object"}:
        return True
    return ("object" in kinds and _is_finite_object(schema, finite)) or (
        "array" in kinds and _is_finite_array(schema, finite)
    )


def _is_finite_object(schema: dict[str, Any], finite: dict[str, bool]) -> bool:
    properties = _object(schema.get("properties"))
    others = schema.get("additionalProperties", True)
    return all(
        _is_finite(properties.get(str(name), others), finite)
        for name in _list(schema.get("required"))
    )


def _is_finite_array(schema: dict[str, Any], finite: dict[str, bool]) -> bool:
    least = schema.get("minItems", 0)
    if not isinstance(least, int) or least < 1:
        return True
    first = _list(schema.get("prefixItems"))[:least]
    rest = [schema.get("items", True)] if least > len(first) else []
    return all(_is_finite(item, finite) for item in (*first, *rest))


def _resolve(root: Any, reference: str) -> Any:
    """What a reference within the document names; True, which anything matches, where we cannot
    tell."""
    if not reference.startswith("#") or (len(reference) > 1 and reference[1] != "/"):
        return True
    at = root
    for step in unquote(reference[1:]).split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(at, dict) and name in at:
            at = at[name]
        elif isinstance(at, list) and name.isdecimal() and int(name) < len(at):
            at = at[int(name)]
        else:
            return True
    return at


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
