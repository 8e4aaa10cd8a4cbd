"""One key that is known is needed, and what is a tenant's is the tenant's alone.

The failure guarded: an answer without a key, a body read before the key, one tenant's cache or
receipts told to another.
"""

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from tokenizers import Tokenizer

from services.gateway.owner.records.row import Row
from tests.integration.http.raw_client import JSON_HEADER, exchange, head_bytes
from tests.integration.http.refusals import check_error
from tests.support.cases.http_bodies import (
    CHAT,
    COUNT,
    MESSAGES,
    chat_body,
    message_body,
    text_body,
)
from tests.support.fakes.served_app import ServedApp, serve_app
from tests.support.settings import settings_with

pytestmark = pytest.mark.anyio
KEYS = {"key-of-a": "team-a", "other-key-of-a": "team-a", "key-of-b": "team-b"}
A, B = ({"authorization": f"Bearer {key}"} for key in ("key-of-a", "key-of-b"))
OPEN_PATHS = ("/health", "/ping", "/ready", "/version", "/docs", "/openapi.json")
GUARDED_GETS = ("/v1/models", "/v1/models/m", "/metrics", "/v1/baton/status")
GUARDED_POSTS = (CHAT, "/v1/completions", "/v1/responses", "/tokenize", "/detokenize")


def entry(key: str, tenant: str) -> str:
    digest = hashlib.sha256(key.encode()).hexdigest()
    return f'[[keys]]\ntenant = "{tenant}"\nsha256 = "{digest}"\n'


@pytest.fixture(scope="module")
async def running_app(
    text_directory: Path,
    tokenizer: Tokenizer,
    anyio_backend: object,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[ServedApp]:
    path = tmp_path_factory.mktemp("keys") / "keys.toml"
    entries = "".join(entry(key, tenant) for key, tenant in KEYS.items())
    path.write_text(f"{entries}max_live_requests = 3\n")  # of the last one, team-b
    settings = settings_with(api_keys_file=str(path))
    async with serve_app(text_directory, tokenizer, settings) as served:
        yield served


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("authorization", "Bearer wrong")],
        [("authorization", "Basic a2V5LW9mLWE6")],
        [("authorization", "Bearer")],
        [("authorization", "key-of-a")],
        [("authorization", "Bearer key-of-a"), ("authorization", "Bearer key-of-a")],
        [("authorization", "Bearer key-of-a"), ("x-api-key", "key-of-b")],
        [("x-api-key", "")],
        [("x-api-key", "k" * 8192)],
        [("x-api-key", hashlib.sha256(b"key-of-a").hexdigest())],
    ],
    ids=lambda headers: f"{len(headers)}-{str(headers)[:40]}",
)
async def test_row_83_no_key_or_none_of_ours(
    app: ServedApp, client: httpx.AsyncClient, headers: list[tuple[str, str]]
) -> None:
    for path in GUARDED_POSTS:
        refused = await client.post(path, json=chat_body(), headers=headers)
        check_error(refused.content, refused.headers, 401, "invalid_api_key")
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"] == "Bearer"
    for path in (MESSAGES, COUNT):
        refused = await client.post(path, json=message_body(), headers=headers)
        assert refused.status_code == 401
        assert refused.json()["error"]["type"] == "authentication_error"
    for path in GUARDED_GETS:
        assert (await client.get(path, headers=headers)).status_code == 401
    assert app.door.requests == []


async def test_row_83_what_has_no_key_is_refused_unread(app: ServedApp) -> None:
    answer = await exchange(app, head_bytes("POST", CHAT, JSON_HEADER, "content-length: 999999"))
    check_error(answer.body, answer.headers, 401, "invalid_api_key")
    assert answer.headers["connection"] == "close"


@pytest.mark.parametrize(
    "headers",
    [
        A,
        {"authorization": "bearer key-of-a"},
        {"x-api-key": "key-of-a"},
        A | {"x-api-key": "key-of-a"},
    ],
    ids=str,
)
async def test_a_key_is_taken_as_clients_send_it(
    app: ServedApp, client: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    assert (await client.post(CHAT, json=chat_body(), headers=headers)).status_code == 200
    assert (await client.get("/v1/models", headers=headers)).status_code == 200
    assert [request.tenant for request in app.door.requests] == ["team-a"]


async def test_a_key_names_how_many_requests_of_its_tenant_may_live(
    app: ServedApp, client: httpx.AsyncClient
) -> None:
    for headers in (A, B):
        assert (await client.post(CHAT, json=chat_body(), headers=headers)).status_code == 200
    assert [request.max_live for request in app.door.requests] == [0, 3]


async def test_probes_and_documentation_need_no_key(client: httpx.AsyncClient) -> None:
    for path in OPEN_PATHS:
        assert (await client.get(path)).status_code == 200, path


async def test_tenants_share_no_cached_block(app: ServedApp, client: httpx.AsyncClient) -> None:
    body = text_body(prompt=[5] * 40)
    for headers in (A, {"x-api-key": "other-key-of-a"}, B):
        assert (await client.post("/v1/completions", json=body, headers=headers)).is_success
    own, same, foreign = (request.block_hashes for request in app.door.requests)
    assert own and own == same
    assert not set(own) & set(foreign or ())


async def test_row_84_receipts_of_another_tenant_are_not_there(
    app: ServedApp, client: httpx.AsyncClient
) -> None:
    app.door.receipts["r"] = {"id": "r", "tenant": "team-a"}
    assert (await client.get("/v1/baton/requests/r", headers=A)).json()["id"] == "r"
    foreign = await client.get("/v1/baton/requests/r", headers=B)
    unknown = await client.get("/v1/baton/requests/none", headers=B)
    assert foreign.status_code == unknown.status_code == 404
    assert foreign.json() == unknown.json()


async def test_the_list_of_requests_has_a_tenant_s_own(
    app: ServedApp, client: httpx.AsyncClient
) -> None:
    app.door.rows += [
        Row(rid, "", tenant, "done", "", "", time, 9, 0, 7, 5.0, 2.0, "p0", "d0", 1)
        for time, (rid, tenant) in enumerate((("r", "team-a"), ("s", "team-b")))
    ]
    listed = await client.get("/v1/baton/requests?limit=1", headers=A)
    assert [row["id"] for row in listed.json()["requests"]] == ["r"]
    assert (await client.get("/v1/baton/requests")).status_code == 401
