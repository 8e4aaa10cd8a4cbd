"""`truncate_prompt_tokens`: the end of a prompt, for whoever asks for it."""

from typing import Any

import httpx
import pytest

from tests.support.cases.http_bodies import CHAT, TEXT, chat_body, text_body
from tests.support.fakes.served_app import ServedApp
from tests.support.models.text_models import MAX_MODEL_LEN

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("keep", "max_tokens", "num_kept"),
    [
        (3, 10, 3),
        (10_000, 10, 400),
        (-1, 200, MAX_MODEL_LEN - 200),
        (-1, None, 400),
        (None, 10, 400),
    ],
)
async def test_the_end_of_a_prompt_is_kept(
    app: ServedApp,
    client: httpx.AsyncClient,
    keep: int | None,
    max_tokens: int | None,
    num_kept: int,
) -> None:
    ids = list(range(3, 403))
    body = text_body(ids, max_tokens=max_tokens, truncate_prompt_tokens=keep)
    response = await client.post(TEXT, json=body)
    assert response.status_code == 200
    (request,) = app.door.requests
    assert list(request.prompt_ids) == ids[-num_kept:]
    assert response.json()["usage"]["prompt_tokens"] == num_kept


@pytest.mark.parametrize("keep", [5, -1])
@pytest.mark.parametrize(
    ("path", "body"), [(CHAT, chat_body("a" * 9999)), (TEXT, text_body([5] * 600))]
)
async def test_a_prompt_that_is_too_long_is_shortened_where_that_is_asked_for(
    app: ServedApp, client: httpx.AsyncClient, path: str, body: dict[str, Any], keep: int
) -> None:
    response = await client.post(path, json={**body, "truncate_prompt_tokens": keep})
    assert response.status_code == 200
    (request,) = app.door.requests
    num_left = MAX_MODEL_LEN - (body.get("max_tokens") or 1)
    assert len(request.prompt_ids) == (num_left if keep < 0 else keep)


@pytest.mark.parametrize("keep", [0, -2, 1.0, True, "5"])
async def test_a_prompt_is_not_shortened_to_nothing(client: httpx.AsyncClient, keep: Any) -> None:
    response = await client.post(TEXT, json=text_body([5, 6], truncate_prompt_tokens=keep))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "truncate_prompt_tokens"
