"""/openapi.json and /docs say what the gateway does: their paths are those that answer, their
fields those that are read, and a value they allow is one that the readers take."""

import re
from typing import Any

import httpx
import jsonschema
import pytest

from services.gateway.owner.generation import Endpoint
from services.gateway.prompt.field_tables import READERS
from services.gateway.routes.openapi import FIELDS, body_schema
from shared.errors import RequestError
from tests.support.cases.http_bodies import CHAT, TEXT, chat_body, text_body

pytestmark = pytest.mark.anyio

VALUES: list[Any] = [
    *(True, -3.5, -1, 0, 0.5, 1, 1.5, 2, 3, 20, 21, 100, 101, 128, 129, 2**31, 2**64),
    *("", "a", "none", "low", "x" * 300, [], [1], [-1], ["a"], ["a"] * 5, ["", "a"], [1] * 200),
    *({}, {"a": 1}, {"5": 1}, {"5": 101}, {"type": "text"}),
]
LOOSE = {
    *("messages", "prompt", "response_format", "structured_outputs", "stream_options"),
    *("tools", "tool_choice", "logit_bias", "guided_json", "chat_template_kwargs"),
    *("regex", "ebnf", "guided_regex", "guided_grammar"),
}
"""fields with rules that no short schema says: what the readers take must be allowed there, not
the other way round"""


async def test_every_path_of_the_description_answers(client: httpx.AsyncClient) -> None:
    description = (await client.get("/openapi.json")).json()
    assert {CHAT, TEXT, "/tokenize", "/v1/models", "/docs"} <= set(description["paths"])
    for path, methods in description["paths"].items():
        (method,) = methods
        response = await client.request(method, path.replace("{name}", "x"), json={})
        assert response.status_code != 405
        code = response.json()["error"]["code"] if response.status_code == 404 else ""
        assert code == "" or "{" in path
        wrong = await client.put(path)
        assert wrong.status_code == 405, path


@pytest.mark.parametrize("endpoint", ["chat", "text"])
def test_what_the_description_allows_is_what_is_read(endpoint: Endpoint) -> None:
    properties = body_schema(endpoint)["properties"]
    assert set(FIELDS) == set(READERS["chat"]) | set(READERS["text"])
    for name, reader in READERS[endpoint].items():
        for value in VALUES:
            allowed = jsonschema.Draft202012Validator(properties[name]).is_valid(value)
            if isinstance(value, float) and value.is_integer():
                continue
            try:
                reader(value, name)
            except RequestError:
                assert not allowed or name in LOOSE, (name, value)
            else:
                assert allowed, (name, value)


@pytest.mark.parametrize(("endpoint", "body"), [("chat", chat_body()), ("text", text_body())])
def test_a_good_body_fits(endpoint: Endpoint, body: dict[str, Any]) -> None:
    full = {**body, "temperature": None, "store": False, "metadata": {}, "unknown": 1}
    jsonschema.Draft202012Validator(body_schema(endpoint)).validate(full)


async def test_the_page_needs_nobody_else(client: httpx.AsyncClient) -> None:
    page = await client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert not re.search(r"(?i)<script|<link|<img|<iframe|\bsrc=|href=|@import|url\(|//", page.text)
    for name in FIELDS:
        assert f"<code>{name}</code>" in page.text
