"""What ends an answer, and the tokens it is made of, as vLLM's and SGLang's clients read them.

The failure guarded: a stream with chunks that say nothing, usage nobody asked for, and ids that
do not add up to the answer. Through a real socket.
"""

from typing import Any

import httpx
import pytest

from tests.integration.http.answers.test_http_answers import post, stream
from tests.support.cases.http_bodies import CHAT, TEXT, chat_body, text_body, text_of
from tests.support.fakes.served_app import ServedApp, script_of
from tests.support.models.text_models import END

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("fields", [{"max_tokens": 2}, {"stop": "zzz"}, {"logprobs": 1}])
async def test_the_last_text_comes_with_its_finish_reason(
    app: ServedApp, client: httpx.AsyncClient, path: str, fields: dict[str, Any]
) -> None:
    """One chunk a token that has text, and one that opens a chat: none that is empty."""
    app.door.script = script_of(app.tokenizer.encode("hello world").ids[:2], None)
    if path == CHAT and "logprobs" in fields:
        fields = {"logprobs": True}
    body = chat_body(**fields) if path == CHAT else text_body(**fields)
    chunks = [event["choices"][0] for event in (await stream(client, path, body))[:-1]]
    if path == CHAT:
        assert chunks.pop(0)["delta"] == {"role": "assistant", "content": ""}
    texts = [chunk.get("text") or chunk.get("delta", {}).get("content") for chunk in chunks]
    assert len(texts) == 2 and all(texts)
    assert [chunk["finish_reason"] for chunk in chunks] == [None, "length"]


async def test_no_usage_where_it_is_turned_off(client: httpx.AsyncClient) -> None:
    options = {"include_usage": False, "continuous_usage_stats": True}
    events = await stream(client, CHAT, chat_body(stream_options=options))
    assert all("usage" not in event for event in events[:-1])


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_usage_tells_of_tokens_whose_text_is_held_back(
    client: httpx.AsyncClient, path: str
) -> None:
    body = chat_body() if path == CHAT else text_body()
    held = body | {"stop": ["hello world!"]}
    assert len(await stream(client, path, held)) <= 3, "the end shows all text at once"
    always = {"include_usage": True, "continuous_usage_stats": True}
    events = await stream(client, path, held | {"stream_options": always})
    *before, _ = [event for event in events[:-1] if event["choices"]]
    assert text_of(before) == ""
    counts = [event["usage"]["completion_tokens"] for event in before]
    assert len(set(counts)) == len(counts) >= 2
    assert text_of(events) == "hello world"


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_token_ids(app: ServedApp, client: httpx.AsyncClient, path: str) -> None:
    asked = chat_body if path == CHAT else text_body
    body = asked(return_token_ids=True, n=2, stop="zz")
    ids = [*app.tokenizer.encode("hello world").ids, app.tokenizer.token_to_id(END)]
    whole = await post(client, path, body)
    prompt = list(app.door.requests[0].prompt_ids)
    assert [choice["token_ids"] for choice in whole["choices"]] == [ids, ids]
    shown = [whole] if path == CHAT else whole["choices"]
    assert [holder["prompt_token_ids"] for holder in shown] == [prompt] * len(shown)
    events = (await stream(client, path, body))[:-1]
    for index in range(2):
        mine = [event for event in events if event["choices"][0]["index"] == index]
        choices = [event["choices"][0] for event in mine]
        assert [token for each in choices for token in each.get("token_ids", [])] == ids
        first = mine[0] if path == CHAT else choices[0]
        assert first["prompt_token_ids"] == prompt
        assert sum("prompt_token_ids" in each for each in (*mine, *choices)) == 1
    plain = await post(client, path, asked())
    assert "prompt_token_ids" not in plain and "token_ids" not in plain["choices"][0]


async def test_tokens_named_by_their_ids(app: ServedApp, client: httpx.AsyncClient) -> None:
    ids = [*app.tokenizer.encode("hello world").ids, app.tokenizer.token_to_id(END)]
    names = [f"token_id:{token}" for token in ids]
    chat = chat_body(logprobs=True, top_logprobs=1, return_tokens_as_token_ids=True)
    content = (await post(client, CHAT, chat))["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == names
    assert content[0]["top_logprobs"][0]["token"].endswith("_id:10")
    text = text_body(logprobs=0, return_tokens_as_token_ids=True)
    logprobs = (await post(client, TEXT, text))["choices"][0]["logprobs"]
    assert logprobs["tokens"] == names
    assert logprobs["top_logprobs"] == [{name: -0.5} for name in names]


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_what_stopped_a_choice(app: ServedApp, client: httpx.AsyncClient, path: str) -> None:
    asked = chat_body if path == CHAT else text_body
    eos = app.tokenizer.token_to_id(END)
    for fields, expected in (
        ({}, ("stop", None, eos)),
        ({"stop": ["zz", "wor"]}, ("stop", "wor", "wor")),
        ({"max_tokens": 1}, ("length", None, None)),
        ({"stop_token_ids": [eos], "ignore_eos": True}, ("stop", eos, eos)),
    ):
        whole = (await post(client, path, asked(**fields)))["choices"][0]
        last = (await stream(client, path, asked(**fields)))[-2]["choices"][0]
        for choice in (whole, last):
            names = ("finish_reason", "stop_reason", "matched_stop")
            assert tuple(choice[name] for name in names) == expected
