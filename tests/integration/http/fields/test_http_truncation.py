"""`truncate_prompt_tokens`: the end of a prompt, for whoever asks for it."""

from typing import Any

import httpx
import pytest

from tests.support.cases.http_bodies import CHAT, TEXT, chat_body, text_body
from tests.support.fakes.served_app import ServedApp
from tests.support.models.text_models import MAX_MODEL_LEN

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("num_given", "keep", "fields", "num_kept"),
    [
        (400, 3, {}, 3),
        (400, 10_000, {}, 400),
        (400, -1, {}, 400),
        (100, -1, {"max_tokens": MAX_MODEL_LEN}, 100),
        (100, -1, {"max_tokens": 10 * MAX_MODEL_LEN}, 100),
        (MAX_MODEL_LEN - 201, -1, {"max_tokens": 200}, MAX_MODEL_LEN - 201),
        (MAX_MODEL_LEN - 1, -1, {"max_tokens": 200}, MAX_MODEL_LEN - 200),
        (MAX_MODEL_LEN, -1, {"max_tokens": 200}, MAX_MODEL_LEN - 200),
        (MAX_MODEL_LEN, -1, {"max_tokens": MAX_MODEL_LEN - 1}, MAX_MODEL_LEN // 2),
        (MAX_MODEL_LEN - 1, -1, {}, MAX_MODEL_LEN * 7 // 8),
        (10 * MAX_MODEL_LEN, -1, {}, MAX_MODEL_LEN * 7 // 8),
        (10 * MAX_MODEL_LEN, -1, {"min_tokens": 5}, MAX_MODEL_LEN * 7 // 8),
        (10 * MAX_MODEL_LEN, -1, {"min_tokens": 300}, MAX_MODEL_LEN - 300),
        (10 * MAX_MODEL_LEN, -1, {"max_tokens": 1}, MAX_MODEL_LEN - 1),
        (10 * MAX_MODEL_LEN, -1, {"max_tokens": 0, "echo": True}, MAX_MODEL_LEN - 1),
        (400, None, {}, 400),
    ],
)
async def test_the_end_of_a_prompt_is_kept(
    app: ServedApp,
    client: httpx.AsyncClient,
    num_given: int,
    keep: int | None,
    fields: dict[str, int],
    num_kept: int,
) -> None:
    ids = [3 + at % 90 for at in range(num_given)]
    given = {"max_tokens": None, **fields, "truncate_prompt_tokens": keep}
    response = await client.post(TEXT, json=text_body(ids, **given))
    assert response.status_code == 200, response.text
    (request,) = app.door.requests
    assert list(request.prompt_ids) == ids[-num_kept:]
    assert response.json()["usage"]["prompt_tokens"] == num_kept


async def test_each_prompt_is_shortened(app: ServedApp, client: httpx.AsyncClient) -> None:
    body = text_body([[5] * 600, [6] * 2, [7] * 9], truncate_prompt_tokens=4)
    assert (await client.post(TEXT, json=body)).status_code == 200
    assert [len(each.prompt_ids) for each in app.door.requests] == [4, 2, 4]


@pytest.mark.parametrize("keep", [5, -1])
async def test_a_chat_loses_its_beginning(
    app: ServedApp, client: httpx.AsyncClient, keep: int
) -> None:
    body = chat_body("a" * 9999, max_tokens=10, truncate_prompt_tokens=keep)
    assert (await client.post(CHAT, json=body)).status_code == 200
    (request,) = app.door.requests
    assert len(request.prompt_ids) == (MAX_MODEL_LEN - 10 if keep < 0 else keep)


@pytest.mark.parametrize("keep", [0, -2, 1.0, True, "5"])
async def test_a_prompt_is_not_shortened_to_nothing(client: httpx.AsyncClient, keep: Any) -> None:
    response = await client.post(TEXT, json=text_body([5, 6], truncate_prompt_tokens=keep))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "truncate_prompt_tokens"
