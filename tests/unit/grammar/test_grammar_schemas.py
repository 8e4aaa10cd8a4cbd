"""What is wrong with a schema before a compiler sees it."""

from typing import Any

import pytest

from shared.errors import GrammarError
from shared.grammar.schemas import MAX_DEPTH, check_depth, check_schema, schemas_in

NOTHING = {"type": "null"}


def needs(name: str, schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {name: schema}, "required": [name]}


ENDLESS: list[Any] = [
    {"$ref": "#"},
    {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}, NOTHING]}}, "$ref": "#/$defs/a"},
    {"anyOf": [{"$ref": "#"}, needs("x", {"$ref": "#"})]},
    needs("x", {"$ref": "#"}),
    {"type": "object", "required": ["x"], "additionalProperties": False},
    {"type": "array", "minItems": 1, "items": {"$ref": "#"}},
    {"type": "array", "minItems": 2, "prefixItems": [NOTHING, {"$ref": "#"}]},
    {"$defs": {"a~/b": {"$ref": "#/$defs/a~0~1b"}}, "$ref": "#/$defs/a~0~1b"},
    {"$defs": {"a b": {"$ref": "#/$defs/a%20b"}}, "$ref": "#/$defs/a%20b"},
    {"enum": []},
    False,
]
FINITE: list[Any] = [
    True,
    {},
    {"type": ["object", "null"], "required": ["x"], "properties": {"x": {"$ref": "#"}}},
    {"anyOf": [{"$ref": "#"}, NOTHING]},
    {"type": "array", "items": {"$ref": "#"}},
    {"type": "array", "minItems": 1, "prefixItems": [NOTHING], "items": {"$ref": "#"}},
    {"type": "object", "properties": {"x": {"$ref": "#"}}},
    needs("x", {"anyOf": [{"$ref": "#"}, {"const": 1}]}),
    {"$ref": "#anchor"},
    {"$ref": "#/nowhere"},
    {
        "$defs": {f"d{at}": {"$ref": f"#/$defs/d{at + 1}"} for at in range(900)},
        "$ref": "#/$defs/d0",
    },
    {"const": {"$ref": "#"}},
    {"$ref": "#/default", "default": {"$ref": "#/elsewhere"}},
]


@pytest.mark.parametrize("schema", ENDLESS)
def test_no_finite_value_matches(schema: Any) -> None:
    with pytest.raises(GrammarError, match="finite"):
        check_schema(schema)


@pytest.mark.parametrize("schema", FINITE)
def test_some_finite_value_matches(schema: Any) -> None:
    check_schema(schema)


@pytest.mark.parametrize(
    "pattern", ["(a+)+$", "^([a-z]*)*", "x(?:\\d+)+", "([^\\]]+)*", "(a+){2,}", "((a+)+)"]
)
def test_a_repeated_repeat_is_refused_wherever_it_is(pattern: str) -> None:
    for schema in (
        {"type": "string", "pattern": pattern},
        needs("x", {"anyOf": [{"pattern": pattern}]}),
        {"patternProperties": {pattern: NOTHING}},
        {"$defs": {"unused": {"pattern": pattern}}},
    ):
        with pytest.raises(GrammarError, match="repeat"):
            check_schema(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"pattern": "(a+b)+"},
        {"pattern": "(ab)+"},
        {"pattern": "\\(a+\\)+"},
        {"pattern": "(a+)?"},
        {"const": {"pattern": "(a+)+"}},
        {"properties": {"pattern": {"type": "string"}, "enum": {"type": "string"}}},
    ],
)
def test_what_only_looks_like_one_is_not(schema: dict[str, Any]) -> None:
    check_schema(schema)


@pytest.mark.parametrize("where", ["https://example.com/a.json", "file:///etc/passwd"])
def test_another_document_is_not_read(where: str) -> None:
    with pytest.raises(GrammarError, match="document"):
        check_schema(needs("x", {"$ref": where}))


def test_depth_is_counted_outside_strings() -> None:
    check_depth("[" * MAX_DEPTH + '"[[[["' + "]" * MAX_DEPTH)
    with pytest.raises(GrammarError, match="nesting"):
        check_depth("[{" * MAX_DEPTH)


def test_schemas_are_found_in_a_grammar() -> None:
    grammar = 'start: %json {"a": "%json {}"} | "%json" x | %json true\nx: %json nonsense | %json{}'
    assert list(schemas_in(grammar)) == [{"a": "%json {}"}, True, {}]
