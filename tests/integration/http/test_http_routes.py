"""The other routes: models, text, probes, status, receipts, metrics."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer

from services.gateway.routes.app import create_admin_app
from services.gateway.routes.status import StatusRoutes
from shared.fields.readers import MAX_STOPS
from tests.support.cases.http_bodies import CHAT, chat_body
from tests.support.fakes.served_app import ScriptedDoor, ServedApp, models_of, serve_app
from tests.support.models.text_models import BOS, MAX_MODEL_LEN, MODEL_NAME
from tests.support.settings import settings_with

pytestmark = pytest.mark.anyio


async def test_models(client: httpx.AsyncClient) -> None:
    listed = (await client.get("/v1/models")).json()
    assert listed["object"] == "list"
    (card,) = listed["data"]
    assert (card["id"], card["object"]) == (MODEL_NAME, "model")
    assert card["max_model_len"] == MAX_MODEL_LEN
    assert (await client.get(f"/v1/models/{MODEL_NAME}")).json() == card
    missing = await client.get("/v1/models/other")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


async def test_tokenize_and_detokenize(app: ServedApp, client: httpx.AsyncClient) -> None:
    text = f"hello {BOS}"
    answer = (await client.post("/tokenize", json={"prompt": text})).json()
    assert answer["tokens"] == app.tokenizer.encode(text).ids
    assert (answer["count"], answer["max_model_len"]) == (len(answer["tokens"]), MAX_MODEL_LEN)
    chat = (await client.post("/tokenize", json=chat_body())).json()
    await client.post(CHAT, json=chat_body())
    assert tuple(chat["tokens"]) == app.door.requests[0].prompt_ids
    back = await client.post("/detokenize", json={"tokens": answer["tokens"]})
    assert back.json() == {"prompt": "hello "}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"prompt": "a", "add_special_tokens": 1}, "add_special_tokens"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [10**6]}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
    ],
)
async def test_bad_text_requests(
    client: httpx.AsyncClient, path: str, body: dict[str, object], param: str
) -> None:
    response = await client.post(path, json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


async def test_an_unknown_path_is_told_the_paths_that_exist(
    app: ServedApp, client: httpx.AsyncClient
) -> None:
    for response in (await client.post("/v1/embeddings", json={}), await client.get("/v1/foo")):
        assert response.status_code == 404
        gets, _, posts = response.json()["error"]["message"].partition("; POST goes to ")
        for path in posts.split(", "):
            assert (await client.get(path)).status_code == 405
        for path in gets.partition("GET goes to ")[2].split(", "):
            assert (await client.post(path, json={})).status_code == 405
        assert posts == (
            "/v1/chat/completions, /v1/completions, /v1/responses, /v1/messages, "
            "/v1/messages/count_tokens, /tokenize, /detokenize"
        )
        assert "/v1/models, " in gets
        assert "/docs, " in gets


OPERATOR_PATHS = (
    *("/metrics", "/v1/capacity", "/v1/baton/status"),
    *("/v1/baton/live", "/v1/baton/watch"),
    *("/v1/baton/requests", "/v1/baton/requests/chatcmpl-1"),
)


async def test_paths_of_operators_may_be_on_the_admin_port_alone(
    text_directory: Path, tokenizer: Tokenizer
) -> None:
    settings = settings_with(operator_paths="admin")
    async with (
        serve_app(text_directory, tokenizer, settings) as served,
        httpx.AsyncClient(base_url=served.url) as client,
    ):
        for path in OPERATOR_PATHS:
            for each in (path, f"{path}/"):
                response = await client.get(each)
                assert response.status_code == 404
                assert "baton" not in response.json()["error"]["message"]
        described = (await client.get("/openapi.json")).json()["paths"]
        assert not described.keys() & {"/metrics", "/v1/baton/status"}
        assert "/v1/models" in described
        for path in ("/health", "/ready", "/version", "/v1/models"):
            assert (await client.get(path)).status_code == 200


async def test_the_admin_port_names_its_own_paths() -> None:
    status = StatusRoutes(models_of(ScriptedDoor(lambda _: ())), lambda: b"", "1.2.3")
    transport = httpx.ASGITransport(create_admin_app(status))
    async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
        message = (await client.get("/v1/models")).json()["error"]["message"]
    assert message == (
        "no such path; GET goes to /health, /ping, /ready, /version, /metrics, /v1/capacity, "
        "/v1/baton/status, /v1/baton/live, /v1/baton/watch, /v1/baton/requests, "
        "/v1/baton/requests/{rid}, /ui"
    )


async def test_a_capacity_is_asked_for_lengths_and_a_price() -> None:
    door = ScriptedDoor(lambda _: ())
    door.shown = {"model": "m", "max_model_len": 64, "block_size": 16}
    status = StatusRoutes(models_of(door), lambda: b"", "1.2.3")
    transport = httpx.ASGITransport(create_admin_app(status))
    async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
        body = (await client.get("/v1/capacity?tokens=20&usd_per_gpu_hour=2")).json()
        assert body["sequences"] == [{"tokens": 20, "fit": 0, "fit_now": 0}]
        assert body["usd_per_million_tokens"] is None
        refused = await client.get("/v1/capacity?tokens=many")
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tokens")
        assert (await client.get("/v1/capacity?model=other")).status_code == 404


async def test_a_receipt_that_another_gateway_has_is_found() -> None:
    async def elsewhere(rid: str) -> dict[str, Any] | None:
        return {"id": rid, "tenant": ""} if rid == "far" else None

    status = StatusRoutes(
        models_of(ScriptedDoor(lambda _: ())), lambda: b"", "1", elsewhere=elsewhere
    )
    transport = httpx.ASGITransport(create_admin_app(status))
    async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
        found = await client.get("/v1/baton/requests/chatcmpl-far")
        assert (found.status_code, found.json()["id"]) == (200, "far")
        assert (await client.get("/v1/baton/requests/gone")).status_code == 404


async def test_probes(app: ServedApp, client: httpx.AsyncClient) -> None:
    assert (await client.get("/health")).status_code == 200
    for store in ("ok", "refuses writes", "away"):
        app.door.store = store
        ready = await client.get("/ready")
        facts = {"status": "ready", "serves": True, "redis": store}
        assert (ready.status_code, ready.json()) == (200, facts)
    app.door.unlinked = "1 registered worker is not linked (p0): peer speaks version 3"
    ready = await client.get("/ready")
    assert (ready.status_code, ready.json()["trouble"]) == (200, app.door.unlinked)
    app.door.is_ready = False
    not_ready = await client.get("/ready")
    assert not_ready.status_code == 503
    assert not_ready.json()["error"]["type"] == "server_error"
    message = not_ready.json()["error"]["message"]
    assert message.startswith("not ready (redis: away): no decode worker is linked; try again")
    app.door.store = "ok"
    assert (await client.get("/health")).status_code == 200


async def test_health_names_the_loop_that_fails(app: ServedApp, client: httpx.AsyncClient) -> None:
    app.door.failing = "beat fails for 31 s (TypeError)"
    answer = await client.get("/health")
    assert answer.status_code == 503
    assert answer.json()["reason"] == "beat fails for 31 s (TypeError)"
    await app.door.reset()
    assert (await client.get("/health")).status_code == 200


async def test_status_version_metrics_and_receipts(
    app: ServedApp, client: httpx.AsyncClient
) -> None:
    assert (await client.get("/version")).json() == {"version": "1.2.3"}
    assert (await client.get("/v1/baton/status")).json()["workers"] == []
    metrics = await client.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "baton_requests_total" in metrics.text
    app.door.receipts["abc"] = body = {"attempts": 1, "tenant": "default"}
    for rid in ("abc", "chatcmpl-abc", "cmpl-abc"):
        assert (await client.get(f"/v1/baton/requests/{rid}")).json() == body
    missing = await client.get("/v1/baton/requests/xyz")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
    assert missing.json()["error"]["param"] == "id"
    assert "each gateway keeps the last 1,000" in missing.json()["error"]["message"]
    for response in (metrics, missing):
        assert len(response.headers["x-request-id"]) == 32


async def test_four_stop_strings_are_allowed(client: httpx.AsyncClient) -> None:
    body = chat_body(stop=["w", "x", "y", "z"][:MAX_STOPS])
    assert (await client.post(CHAT, json=body)).status_code == 200
