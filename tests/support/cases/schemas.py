"""Fifty JSON Schemas as people write them, each with a longest answer, so that also a model that
chooses at random comes to an end."""

from typing import Any

Schema = dict[str, Any]


def record(**properties: Schema) -> Schema:
    """An object with exactly these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def text(most: int = 12, least: int = 0) -> Schema:
    return {"type": "string", "minLength": least, "maxLength": most}


def whole(low: int, high: int) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high}


def items(of: Schema, most: int = 3, least: int = 0) -> Schema:
    return {"type": "array", "items": of, "minItems": least, "maxItems": most}


def pattern(regex: str) -> Schema:
    return {"type": "string", "pattern": regex}


COLOUR: Schema = {"enum": ["red", "green", "blue"]}
FLAG: Schema = {"type": "boolean"}
NOTHING: Schema = {"type": "null"}
POINT = record(x=whole(-100, 100), y=whole(-100, 100))
SIDE: Schema = {"type": "number", "minimum": 0.5, "maximum": 9.75}
TREE: Schema = {
    "$defs": {"node": record(v=whole(0, 9), kids=items({"$ref": "#/$defs/node"}, 1))},
    "$ref": "#/$defs/node",
}
EXPRESSION: Schema = {
    "$defs": {
        "term": {
            "anyOf": [
                whole(0, 99),
                FLAG,
                NOTHING,
                record(op={"enum": ["+", "-", "*"]}, of=items({"$ref": "#/$defs/term"}, 2, 2)),
            ]
        }
    },
    "$ref": "#/$defs/term",
}
LIST: Schema = {
    "$defs": {"list": {"anyOf": [NOTHING, record(head=COLOUR, tail={"$ref": "#/$defs/list"})]}},
    "$ref": "#/$defs/list",
}

SCHEMAS: dict[str, Schema] = {
    "null": NOTHING,
    "boolean": FLAG,
    "integer between": whole(-20, 300),
    "integer above": {"type": "integer", "exclusiveMinimum": 10, "maximum": 99999},
    "integer below": {"type": "integer", "minimum": -500, "exclusiveMaximum": 0},
    "multiple of": {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 1000},
    "number between": {"type": "number", "minimum": -1.5, "maximum": 2.25},
    "number above": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "short string": text(),
    "string with least": text(20, 5),
    "empty string": text(0),
    "enum of strings": COLOUR,
    "enum of kinds": {"enum": ["a", 1, 2.5, None, True, ["x"], {"k": "v"}]},
    "enum of unicode": {"enum": ["é", "日本語", "🙂", 'quo"te', "back\\slash", "new\nline"]},
    "const": {"const": {"version": 2, "name": "baton"}},
    "plate": pattern("^[A-Z]{2}-[0-9]{4,8}$"),
    "hex colour": pattern("^#([0-9a-f]{3}|[0-9a-f]{6})$"),
    "version": pattern(r"^\d{1,2}\.\d{1,2}\.\d{1,3}(-rc\d)?$"),
    "words": pattern("^[a-z]{1,6}( [a-z]{1,6}){0,3}$"),
    "unicode pattern": pattern("^[äöüß]{1,5}€?$"),
    "date": {"type": "string", "format": "date"},
    "time": {"type": "string", "format": "date-time", "maxLength": 40},
    "uuid": {"type": "string", "format": "uuid"},
    "ipv4": {"type": "string", "format": "ipv4"},
    "integers": items(whole(0, 9), 8, 2),
    "strings": items(text(6)),
    "enums": items(COLOUR, 5, 1),
    "lists of lists": items(items(FLAG, 2, 1), 3, 1),
    "tuple": {
        "type": "array",
        "prefixItems": [text(4), whole(0, 9), FLAG],
        "items": False,
        "minItems": 3,
    },
    "tuple with tail": {
        "type": "array",
        "prefixItems": [COLOUR],
        "items": whole(0, 9),
        "minItems": 1,
        "maxItems": 4,
    },
    "no items": items(FLAG, 0),
    "point": POINT,
    "person": record(name=text(10, 1), age=whole(0, 120), email=pattern("^[a-z]{2,8}@x[.]org$")),
    "unicode keys": record(**{"größe": SIDE, "色": COLOUR, "a b": FLAG, 'q"': NOTHING}),
    "optional": {**record(a=whole(0, 9), b=text(5), c=FLAG), "required": ["b"]},
    "all optional": {**record(a=whole(0, 9), b=COLOUR), "required": []},
    "no properties": record(),
    "nested": record(outer=record(inner=record(deep=items(POINT, 2, 1)))),
    "map": {"type": "object", "additionalProperties": whole(0, 9), "maxProperties": 0},
    "pattern properties": {
        "type": "object",
        "patternProperties": {"^k[0-9]$": FLAG},
        "additionalProperties": False,
        "properties": {"id": whole(0, 9)},
        "required": ["id"],
    },
    "any of kinds": {"anyOf": [text(5), whole(0, 99), NOTHING]},
    "any of records": {"anyOf": [record(kind={"const": "circle"}, r=SIDE), POINT]},
    "one of consts": {
        "oneOf": [
            record(kind={"const": "a"}, value=whole(0, 9)),
            record(kind={"const": "b"}, value=text(4)),
        ]
    },
    "all of": {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 77}]},
    "several types": {"type": ["string", "null", "boolean"], "maxLength": 4},
    "nullable": record(note={"anyOf": [text(8), NOTHING]}, at={"type": ["integer", "null"]}),
    "reference": {"$defs": {"p": POINT}, **record(start={"$ref": "#/$defs/p"}, end=POINT)},
    "tree": TREE,
    "expression": EXPRESSION,
    "linked list": LIST,
}
