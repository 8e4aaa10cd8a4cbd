"""Structured output over a real socket: rows 79 and 80, and what reaches the engines."""

import json
import time
from typing import Any

import httpx
import pytest

from shared.grammar import source
from tests.integration.http.refusals import Refusals, check_error
from tests.support.cases.http_bodies import CHAT, TEXT, chat_body, text_body
from tests.support.fakes.served_app import ServedApp
from tests.support.measured import Measured

pytestmark = [pytest.mark.anyio, pytest.mark.clock]

WITHIN_S = 1.0
NOTHING: dict[str, Any] = {"type": "null"}
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def schema_format(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **more}}


def nested(levels: int) -> str:
    """A body whose schema is that deep; by hand, as Python's writer gives up before."""
    deep = '{"type": "array", "items": ' * levels + '{"type": "null"}' + "}" * levels
    body = json.dumps(chat_body(response_format=schema_format("HERE")))
    return body.replace('"HERE"', deep)


BAD_SCHEMAS: dict[str, Any] = {
    "regex": {"type": "string", "pattern": "(a"},
    "look-ahead": {"type": "string", "pattern": "a(?=b)"},
    "redos": {"type": "string", "pattern": "(a+)+$"},
    "cyclic-ref": {"$ref": "#"},
    "cyclic-pair": {
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
        "$ref": "#/$defs/a",
    },
    "cyclic-anchor": {"$anchor": "here", "$ref": "#here"},
    "endless": {"type": "object", "properties": {"x": {"$ref": "#"}}, "required": ["x"]},
    "remote-ref": {"$ref": "https://example.com/schema.json"},
    "file-ref": {"$ref": "file:///etc/passwd"},
    "unknown-type": {"type": "strnig"},
    "unsatisfiable": {"type": "integer", "minimum": 5, "maximum": 3},
    "unique-items": {"type": "array", "uniqueItems": True},
    "no-lenience": {"type": "array", "uniqueItems": True, "x-guidance": {"lenient": True}},
    "unprintable": {"type": "string", "pattern": "(\u0007\u202e"},
    "large": {"enum": ["x" * 250] * 300},
}


@pytest.mark.parametrize("name", BAD_SCHEMAS)
async def test_row_80_schemas_nobody_can_follow(refusals: Refusals, name: str) -> None:
    body = chat_body(response_format=schema_format(BAD_SCHEMAS[name]))
    await refusals.post(json.dumps(body).encode(), "invalid_schema", "response_format")


@pytest.mark.parametrize("levels", [40, 1000])
async def test_row_80_a_deep_schema(refusals: Refusals, levels: int) -> None:
    await refusals.post(nested(levels).encode(), "invalid_schema", "response_format")


async def test_row_80_a_schema_that_takes_for_ever(
    app: ServedApp, client: httpx.AsyncClient, measured: Measured
) -> None:
    """It costs the checker its life and nobody else anything: others are answered meanwhile."""
    patterns = [{"type": "string", "pattern": f"^(a|b)*a(a|b){{{n}}}$"} for n in range(10, 40)]
    slow = chat_body(response_format=schema_format({"allOf": patterns}))
    good = chat_body(response_format=schema_format(PERSON))
    assert (await client.post(CHAT, json=good)).status_code == 200
    took_s: list[float] = []
    for _ in range(3):
        started = time.monotonic()
        response = await client.post(CHAT, json=slow)
        took_s.append(time.monotonic() - started)
        check_error(response.content, response.headers, 400, "invalid_schema", "response_format")
        assert response.status_code == 400
        other = chat_body(response_format=schema_format({"type": "boolean"}))
        assert (await client.post(CHAT, json=other)).status_code == 200
    measured.at_most("refused after", min(took_s), WITHIN_S, "s")
    assert all(request.sampling.grammar for request in app.door.requests)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        pytest.param({"response_format": 5}, "invalid_value", id="number"),
        pytest.param({"response_format": []}, "invalid_value", id="list"),
        pytest.param({"response_format": {}}, "invalid_value", id="no-type"),
        pytest.param({"response_format": {"type": 5}}, "invalid_value", id="type-number"),
        pytest.param({"response_format": {"type": "xml"}}, "unsupported_parameter", id="xml"),
        pytest.param(
            {"response_format": {"type": "structural_tag", "structures": []}},
            "unsupported_parameter",
            id="structural-tag",
        ),
        pytest.param(
            {"response_format": {"type": "text", "schema": {}}}, "unsupported_parameter", id="key"
        ),
        pytest.param({"response_format": {"type": "json_schema"}}, "invalid_value", id="none"),
        pytest.param(
            {"response_format": schema_format(True)}, "invalid_value", id="schema-no-object"
        ),
        pytest.param(
            {"response_format": schema_format({}, strict="yes")}, "invalid_value", id="strict"
        ),
        pytest.param(
            {"response_format": schema_format({}, name="a b")}, "invalid_value", id="name"
        ),
        pytest.param(
            {"response_format": schema_format({}, extra=1)}, "unsupported_parameter", id="extra"
        ),
        pytest.param({"grammar": "start: x"}, "unsupported_parameter", id="row-79-grammar"),
        pytest.param({"structural_tag": "{}"}, "unsupported_parameter", id="row-79-tag"),
    ],
)
async def test_row_79_formats_we_do_not_have(
    refusals: Refusals, fields: dict[str, Any], code: str
) -> None:
    await refusals.post(json.dumps(chat_body(**fields)).encode(), code)


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_a_grammar_reaches_the_engines(
    app: ServedApp, client: httpx.AsyncClient, path: str
) -> None:
    make = chat_body if path == CHAT else text_body
    told = {
        json.dumps(None): "",
        json.dumps({"type": "text"}): "",
        json.dumps({"type": "json_object"}): source.json_object(),
        json.dumps(schema_format(PERSON, strict=True)): source.json_schema(PERSON),
        json.dumps(schema_format(PERSON, strict=None, description="who")): source.json_schema(
            PERSON
        ),
    }
    for written, grammar in told.items():
        app.door.requests.clear()
        response = await client.post(path, json=make(response_format=json.loads(written)))
        assert response.status_code == 200, response.text
        assert app.door.requests[0].sampling.grammar == grammar


async def test_schemas_that_refer_to_themselves_are_taken(
    app: ServedApp, client: httpx.AsyncClient
) -> None:
    tree = {"type": "array", "items": {"$ref": "#"}}
    chain = {f"d{at}": {"$ref": f"#/$defs/d{at + 1}"} for at in range(250)}
    long = {"$defs": {**chain, "d250": NOTHING}, "$ref": "#/$defs/d0"}
    for schema in (tree, long):
        body = chat_body(response_format=schema_format(schema))
        assert (await client.post(CHAT, json=body)).status_code == 200
