"""/openapi.json and /docs say what the gateway does: their paths are those that answer, their
fields those that are read, and a value they allow is one that the readers take."""

import re
from typing import Any

import httpx
import jsonschema
import pytest

from services.gateway.prompt.field_tables import READERS, TABLES, FieldTable
from services.gateway.prompt.shapes.messages import MESSAGES_READERS, MESSAGES_TABLE
from services.gateway.prompt.shapes.responses import RESPONSES_READERS, RESPONSES_TABLE
from services.gateway.routes.message_schema import MESSAGE_FIELDS
from services.gateway.routes.openapi import (
    ANSWERED,
    FIELDS,
    HEADERS,
    body_schema,
    chat_schema,
    text_schema,
)
from services.gateway.routes.response_schema import RESPONSE_FIELDS
from shared.errors import RequestError
from tests.support.cases.http_bodies import (
    CHAT,
    MESSAGES,
    RESPONSES,
    TEXT,
    chat_body,
    message_body,
    response_body,
    text_body,
)

pytestmark = pytest.mark.anyio

APIS: dict[str, tuple[FieldTable, dict[str, Any], dict[str, Any]]] = {
    "chat": (TABLES["chat"], chat_schema(), chat_body()),
    "text": (TABLES["text"], text_schema(), text_body()),
    "responses": (
        RESPONSES_TABLE,
        body_schema(RESPONSES_TABLE, FIELDS | RESPONSE_FIELDS),
        response_body(),
    ),
    "messages": (
        MESSAGES_TABLE,
        body_schema(MESSAGES_TABLE, FIELDS | MESSAGE_FIELDS),
        message_body(),
    ),
}
VALUES: list[Any] = [
    *(True, -3.5, -1, 0, 0.5, 1, 1.5, 2, 3, 20, 21, 100, 101, 128, 129, 2**31, 2**64),
    *("", "a", "none", "low", "x" * 300, [], [1], [-1], ["a"], ["a"] * 5, ["", "a"], [1] * 200),
    *({}, {"a": 1}, {"5": 1}, {"5": 101}, {"type": "text"}),
]
LOOSE = {
    *("messages", "prompt", "response_format", "structured_outputs", "stream_options"),
    *("tools", "tool_choice", "logit_bias", "guided_json", "chat_template_kwargs"),
    *("regex", "ebnf", "guided_regex", "guided_grammar"),
    *("output_config", "system", "thinking"),
    *("input", "reasoning", "text"),
}
"""fields with rules that no short schema says: what the readers take must be allowed there, not
the other way round"""


async def test_every_path_of_the_description_answers(client: httpx.AsyncClient) -> None:
    description = (await client.get("/openapi.json")).json()
    known = {CHAT, TEXT, MESSAGES, RESPONSES, "/tokenize", "/v1/models", "/docs"}
    assert known <= set(description["paths"])
    for path, methods in description["paths"].items():
        (method,) = methods
        asked = path.replace("{name}", "x")
        async with client.stream(method, asked, json={}) as response:
            pass  # one path never ends
        assert response.status_code != 405
        assert response.status_code != 404 or "{" in path
        wrong = await client.put(path)
        assert wrong.status_code == 405, path


@pytest.mark.parametrize("header", [name for name in HEADERS if name != "traceparent"])
async def test_every_header_of_the_description_is_read(
    client: httpx.AsyncClient, header: str
) -> None:
    """By each path that has it: what none allows is refused by its name."""
    bodies = {CHAT: chat_body(), TEXT: text_body(), RESPONSES: response_body()}
    bodies |= {MESSAGES: message_body()}
    assert set(bodies) == set(ANSWERED)
    paths = (await client.get("/openapi.json")).json()["paths"]
    for path, body in bodies.items():
        told = {each["name"] for each in paths[path]["post"]["parameters"]}
        assert told == set(HEADERS)
        answer = await client.post(path, json=body, headers={header: "x" * 300})
        assert answer.status_code == 400, (path, answer.text)
        assert header in answer.text.lower()
    assert "parameters" not in paths["/tokenize"]["post"]


@pytest.mark.parametrize("api", APIS)
def test_what_the_description_allows_is_what_is_read(api: str) -> None:
    table, schema, _ = APIS[api]
    for name, reader in table.readers.items():
        for value in VALUES:
            allowed = jsonschema.Draft202012Validator(schema["properties"][name]).is_valid(value)
            if isinstance(value, float) and value.is_integer():
                continue
            try:
                reader(value, name)
            except RequestError:
                assert not allowed or name in LOOSE, (name, value)
            else:
                assert allowed, (name, value)


def test_every_field_that_is_described_is_read() -> None:
    assert set(FIELDS) == set(READERS["chat"]) | set(READERS["text"])
    assert set(MESSAGE_FIELDS) <= set(MESSAGES_READERS)
    assert set(RESPONSE_FIELDS) <= set(RESPONSES_READERS)


@pytest.mark.parametrize("api", APIS)
def test_a_good_body_fits(api: str) -> None:
    _, schema, body = APIS[api]
    full = {**body, "temperature": None, "metadata": {}, "unknown": 1}
    jsonschema.Draft202012Validator(schema).validate(full)


async def test_the_page_needs_nobody_else(client: httpx.AsyncClient) -> None:
    page = await client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert not re.search(r"(?i)<script|<link|<img|<iframe|\bsrc=|href=|@import|url\(|//", page.text)
    for name in FIELDS | MESSAGE_FIELDS | RESPONSE_FIELDS:
        assert f"<code>{name}</code>" in page.text
