"""Answers of several choices: `n`, lists of prompts, and what happens when one of them fails.

Rows are those of the list of inputs. Through a real socket.
"""

import asyncio
import json
from collections.abc import Sequence
from math import inf
from typing import Any

import httpx
import pytest

from services.gateway.owner.generation import Delta, GenerateRequest
from services.gateway.prompt.field_tables import MAX_CHOICES, MAX_PROMPTS
from shared.errors import AttemptError, BatonError, OverloadedError
from shared.text.choice_seed import choice_seed
from shared.text.sampling_fields import MAX_N
from tests.integration.http.answers.choices import (
    connection,
    finish_reasons,
    post,
    request_bytes,
    say,
    stream,
    texts_of,
    until,
)
from tests.support.cases.http_bodies import CHAT, TEXT, chat_body, events_of, text_body
from tests.support.fakes.served_app import ServedApp, Step, delta
from tests.support.models.text_models import BOS

pytestmark = pytest.mark.anyio
LONG = "the quick brown fox jumps over the lazy dog and the dog runs home again " * 2
"""more than one block of tokens"""
FAILURE = AttemptError("all attempts failed", code="attempts_exhausted", status=502)
CANCEL_S = 2.0


def answers_of(app: ServedApp, *texts: str) -> None:
    """From now on choice i is answered with the i-th text."""
    app.door.script = lambda request: say(app, texts[request.choice])


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("n", [0, -1, 129, 2**31, 1.5, 2.0, "2", True, [2]], ids=repr)
async def test_row_53_n_is_refused(client: httpx.AsyncClient, path: str, n: Any) -> None:
    body = chat_body(n=n) if path == CHAT else text_body(n=n)
    response = await client.post(path, json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "n"


@pytest.mark.parametrize(
    ("prompt", "n", "param"),
    [
        (["a", 5], 1, "prompt"),
        (["a", ["b"]], 1, "prompt"),
        ([[1], [2.5]], 1, "prompt"),
        (["a", ""], 1, "prompt[1]"),
        ([[], [1]], 1, "prompt[0]"),
        ([[1], [10**6]], 1, "prompt[1]"),
        (["a", "word " * 600], 1, "prompt[1]"),
        ([[5]] * (MAX_PROMPTS + 1), 1, "prompt"),
        ([[5]] * 17, MAX_N, "n"),
    ],
)
async def test_lists_of_prompts_that_are_refused(
    app: ServedApp, client: httpx.AsyncClient, prompt: Any, n: int, param: str
) -> None:
    response = await client.post(TEXT, json=text_body(prompt, n=n))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert app.door.requests == []


async def test_a_whole_answer_of_three_choices(app: ServedApp, client: httpx.AsyncClient) -> None:
    answers_of(app, "hello", "world", "the quick brown fox")
    app.door.cached_tokens = 3
    response = await client.post(CHAT, json=chat_body(LONG, n=3, seed=7))
    answer = response.json()
    requests = app.door.requests
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    texts = [choice["message"]["content"] for choice in answer["choices"]]
    assert texts == ["hello", "world", "the quick brown fox"]
    assert answer["id"] == "chatcmpl-" + response.headers["x-request-id"]
    rids = {request.rid for request in requests}
    assert len(rids | {response.headers["x-request-id"]}) == 4
    assert {request.http_rid for request in requests} == {response.headers["x-request-id"]}
    assert len({request.prompt_ids for request in requests}) == 1
    num_tokens = sum(len(app.tokenizer.encode(text).ids) + 1 for text in texts)
    num_prompt = len(requests[0].prompt_ids)
    assert answer["usage"] == {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_tokens,
        "total_tokens": num_prompt + num_tokens,
        "prompt_tokens_details": {"cached_tokens": 3},
    }


async def test_seeds_of_choices(app: ServedApp, client: httpx.AsyncClient) -> None:
    """The first keeps the request's; another prompt's choices draw with the same ones."""
    await post(client, TEXT, text_body(["a", "b"], n=3, seed=7))
    seeds = [request.sampling.seed for request in app.door.requests]
    expected = [7, choice_seed(7, 1), choice_seed(7, 2)]
    assert sorted(seeds) == sorted(expected * 2)
    assert len(set(expected)) == 3
    await app.door.reset()
    await post(client, TEXT, text_body("a", seed=7))
    (alone,) = app.door.requests
    assert (alone.sampling.seed, alone.group) == (7, None)
    assert choice_seed(7, 1) == 8187063554216767459


async def test_list_prompts_are_answered_in_order(
    app: ServedApp, client: httpx.AsyncClient
) -> None:
    prompts = ["hello", "world", "hello user"]
    answers_of(app, *"abcdef")
    answer = await post(client, TEXT, text_body(prompts, n=2))
    assert [choice["text"] for choice in answer["choices"]] == list("abcdef")
    by_choice = {request.choice: request for request in app.door.requests}
    told = [app.tokenizer.decode(by_choice[at].prompt_ids) for at in range(6)]
    assert [text.replace(BOS, "") for text in told] == [p for p in prompts for _ in range(2)]
    assert [by_choice[at].prompt for at in range(6)] == [0, 0, 1, 1, 2, 2]
    num_prompt = sum(len(by_choice[at].prompt_ids) for at in (0, 2, 4))
    assert answer["usage"]["prompt_tokens"] == num_prompt
    assert answer["usage"]["completion_tokens"] == 12
    ids = [[5, 6], [7]]
    await app.door.reset()
    await post(client, TEXT, text_body(ids))
    assert [list(request.prompt_ids) for request in app.door.requests] == ids


async def test_as_many_prompts_as_are_allowed(app: ServedApp, client: httpx.AsyncClient) -> None:
    answer = await post(client, TEXT, text_body([[5 + at] for at in range(MAX_CHOICES)]))
    assert [choice["index"] for choice in answer["choices"]] == list(range(MAX_CHOICES))
    assert {choice["text"] for choice in answer["choices"]} == {"hello world"}


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_streamed_choices_interleave(
    app: ServedApp, client: httpx.AsyncClient, path: str
) -> None:
    texts = ["hello", "the quick brown fox", "one two"]
    gates = [asyncio.Event() for _ in texts]

    def script(request: GenerateRequest) -> Sequence[Step]:
        """Choice 1 goes on only when choice 2 has begun, so that nothing can come in order."""
        first, *rest = say(app, texts[request.choice])
        gates[request.choice].set()
        return [first, gates[2], *rest]

    app.door.script = script
    body = chat_body(LONG, n=3) if path == CHAT else text_body(LONG, n=3)
    events = await stream(client, path, body | {"stream_options": {"include_usage": True}})
    assert events.pop() == "[DONE]"
    usage = events.pop()
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == sum(
        len(app.tokenizer.encode(text).ids) + 1 for text in texts
    )
    assert all(event["usage"] is None for event in events)
    assert len({event["id"] for event in events}) == 1
    indexes = [choice["index"] for event in events for choice in event["choices"]]
    assert indexes != sorted(indexes)
    assert texts_of(events) == dict(enumerate(texts))
    assert finish_reasons(events) == {0: ["stop"], 1: ["stop"], 2: ["stop"]}
    if path == CHAT:
        opened = [choice for e in events for choice in e["choices"] if "role" in choice["delta"]]
        assert sorted(choice["index"] for choice in opened) == [0, 1, 2]


async def test_continuous_usage_counts_all_choices(client: httpx.AsyncClient) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = await stream(client, CHAT, chat_body(LONG, n=2) | {"stream_options": options})
    counts = [event["usage"]["completion_tokens"] for event in events[:-1]]
    assert counts == sorted(counts)
    assert counts[-1] == counts[-2]
    assert texts_of(events[:-1]) == {0: "hello world", 1: "hello world"}


async def test_choices_wait_for_the_prompt_to_be_computed(
    app: ServedApp, client: httpx.AsyncClient
) -> None:
    """The first goes ahead; the others follow its first token. Short prompts share nothing."""
    token_1 = asyncio.Event()

    def script(request: GenerateRequest) -> Sequence[Step]:
        return [token_1, *say(app, "hello")]

    app.door.script = script
    headers = {"x-baton-timeout-s": "20"}
    asking = asyncio.ensure_future(client.post(CHAT, json=chat_body(LONG, n=4), headers=headers))
    await until(lambda: bool(app.door.requests))
    await asyncio.sleep(0.05)
    assert [request.choice for request in app.door.requests] == [0]
    token_1.set()
    assert (await asking).status_code == 200
    assert [request.choice for request in app.door.requests] == [0, 1, 2, 3]
    assert app.door.requests[1].timeout_s < app.door.requests[0].timeout_s
    token_1.clear()
    await app.door.reset()
    asking = asyncio.ensure_future(client.post(TEXT, json=text_body("hi", n=4)))
    await until(lambda: len(app.door.requests) == 4)
    token_1.set()
    assert (await asking).status_code == 200


async def test_stop_strings_end_each_choice_for_itself(
    app: ServedApp, client: httpx.AsyncClient
) -> None:
    answers_of(app, "one two three", "one four three")
    body = chat_body(LONG, n=2, stop=[" two"])
    answer = await post(client, CHAT, body)
    texts = [choice["message"]["content"] for choice in answer["choices"]]
    assert texts == ["one", "one four three"]
    ((rid, reason, _),) = app.door.finished
    assert (rid, reason) == (app.door.requests[0].rid, "stop")
    events = await stream(client, CHAT, body)
    assert texts_of(events[:-1]) == {0: "one", 1: "one four three"}


async def test_log_probabilities_of_each_choice(app: ServedApp, client: httpx.AsyncClient) -> None:
    answers_of(app, "hello world", "the fox")
    answer = await post(client, TEXT, text_body(LONG, n=2, logprobs=1))
    told = ["".join(choice["logprobs"]["tokens"]) for choice in answer["choices"]]
    assert [text.partition("<")[0] for text in told] == ["hello world", "the fox"]
    assert [choice["logprobs"]["text_offset"][0] for choice in answer["choices"]] == [0, 0]
    events = await stream(client, TEXT, text_body(LONG, n=2, logprobs=1))
    for index in (0, 1):
        parts = [c["logprobs"] for e in events[:-1] for c in e["choices"] if c["index"] == index]
        assert "".join(t for part in parts if part for t in part["tokens"]) == told[index]


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("failing", [0, 2])
async def test_a_failure_before_the_first_byte_has_its_own_status(
    app: ServedApp, client: httpx.AsyncClient, streaming: bool, failing: int
) -> None:
    forever = asyncio.Event()

    def script(request: GenerateRequest) -> Sequence[Step]:
        if request.choice == failing:
            return [None, FAILURE]
        return [delta((70,)), forever]

    app.door.script = script
    if streaming:
        app.door.accepts = lambda request: request.choice != failing
    response = await client.post(CHAT, json=chat_body(LONG, n=3, stream=streaming))
    assert response.status_code == 502
    assert response.json()["error"]["code"] == "attempts_exhausted"
    others = {r.rid for r in app.door.requests if r.choice != failing}
    assert others <= set(app.door.cancelled)


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("late", [False, True], ids=["at-once", "admission"])
@pytest.mark.parametrize("prompt", [LONG, "hi"], ids=["long", "short"])
async def test_a_refused_choice_refuses_the_request(
    app: ServedApp, client: httpx.AsyncClient, status: int, late: bool, prompt: str
) -> None:
    """Before any byte, even when others have tokens already; they are cancelled."""
    refusal = OverloadedError("full", retry_after_s=2.3, status=status)
    forever = asyncio.Event()

    def script(request: GenerateRequest) -> Sequence[Step]:
        if request.choice == 1 and not late:
            app.door.refusal = refusal
        refused: list[Step] = [None, None, refusal]
        return refused if late and request.choice == 2 else [delta((70,)), forever]

    app.door.script = script
    app.door.accepts = lambda request: request.choice != 2
    response = await client.post(CHAT, json=chat_body(prompt, n=3, stream=True))
    assert response.status_code == status
    assert response.headers["retry-after"] == "3"
    assert {request.choice for request in app.door.requests} >= {0, 1}
    assert {r.rid for r in app.door.requests if r.choice < 2} <= set(app.door.cancelled)


async def test_a_refusal_that_no_wait_helps_names_no_time_to_come_back(
    app: ServedApp, client: httpx.AsyncClient
) -> None:
    app.door.refusal = OverloadedError("its own tokens take too long", retry_after_s=inf)
    response = await client.post(CHAT, json=chat_body("hi"))
    assert response.status_code == 429
    assert "retry-after" not in response.headers
    assert response.json()["error"]["message"] == "its own tokens take too long"


async def test_row_89_a_choice_that_fails_ends_the_stream(
    app: ServedApp, client: httpx.AsyncClient
) -> None:
    going = asyncio.Event()
    forever = asyncio.Event()

    def script(request: GenerateRequest) -> Sequence[Step]:
        if request.choice == 1:
            return [delta((70,)), going, FAILURE]
        going.set()
        return [delta((70,)), forever]

    app.door.script = script
    response = await client.post(CHAT, json=chat_body(LONG, n=3, stream=True))
    assert response.status_code == 200
    events = events_of(response.text)
    assert [event for event in events if "error" in event] == [events[-1]]
    assert events[-1]["error"]["code"] == "attempts_exhausted"
    others = {r.rid for r in app.door.requests if r.choice != 1}
    assert others <= set(app.door.cancelled)


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_client_that_leaves_cancels_every_choice(app: ServedApp, streaming: bool) -> None:
    forever = asyncio.Event()
    app.door.script = lambda _: [delta((70,)), forever]
    async with connection(app) as (reader, writer):
        writer.write(request_bytes(CHAT, chat_body(LONG, n=3, stream=streaming)))
        if streaming:
            await reader.readuntil(b"assistant")
        await until(lambda: len(app.door.requests) == 3)
    async with asyncio.timeout(CANCEL_S):
        await until(lambda: len(app.door.cancelled) == 3)
    assert set(app.door.cancelled) == {request.rid for request in app.door.requests}


@pytest.mark.parametrize("error", [None, FAILURE], ids=["ends", "fails"])
async def test_a_choice_that_just_ends_is_never_a_short_answer(
    app: ServedApp, client: httpx.AsyncClient, error: BatonError | None
) -> None:
    def script(request: GenerateRequest) -> Sequence[Step]:
        return [delta((70,)), error] if request.choice else say(app, "hello")

    app.door.script = script
    response = await client.post(CHAT, json=chat_body(LONG, n=2))
    assert response.status_code in (500, 502)


async def test_row_82_two_live_requests_with_one_client_id(
    app: ServedApp, client: httpx.AsyncClient
) -> None:
    together = asyncio.Event()
    app.door.script = lambda _: [together, *say(app, "hello")]
    headers = {"x-request-id": "same"}
    asking = [
        asyncio.ensure_future(client.post(CHAT, json=chat_body("hi", n=n), headers=headers))
        for n in (1, 1, 2, 2)
    ]
    await until(lambda: len(app.door.requests) == 6)
    together.set()
    responses = await asyncio.gather(*asking)
    assert [response.status_code for response in responses] == [200] * 4
    ids = {response.headers["x-request-id"] for response in responses}
    assert len(ids) == 4
    assert "same" not in ids
    assert len({request.rid for request in app.door.requests}) == 6


async def test_row_88_a_half_closed_client_gets_every_choice(app: ServedApp) -> None:
    go_on = asyncio.Event()
    texts = ["hello world", "the fox"]

    def script(request: GenerateRequest) -> Sequence[Step]:
        first, *rest = say(app, texts[request.choice])
        return [first, go_on, *rest]

    app.door.script = script
    async with connection(app) as (reader, writer):
        writer.write(request_bytes(CHAT, chat_body(LONG, n=2, stream=True)))
        writer.write_eof()
        await until(lambda: len(app.door.requests) == 2)
        go_on.set()
        async with asyncio.timeout(10):
            answer = (await reader.read()).decode()
    events = [line for line in answer.splitlines() if line.startswith("data: ")]
    assert events.pop() == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in events]
    assert texts_of(chunks) == dict(enumerate(texts))
    assert app.door.cancelled == []


async def test_tokens_of_one_turn_are_one_delta_each(app: ServedApp) -> None:
    """A slow reader of a group costs less too: what arrived meanwhile is joined."""
    ids = tuple(app.tokenizer.encode("hello world").ids)
    app.door.script = lambda _: [*(Delta((token,), ()) for token in ids), delta((), "stop")]
    async with httpx.AsyncClient(base_url=app.url) as client:
        events = await stream(client, TEXT, text_body(["a", "b"]))
    assert texts_of(events[:-1]) == {0: "hello world", 1: "hello world"}
