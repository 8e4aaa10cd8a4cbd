"""What an answer shows of its prompt: `echo`, and log-probabilities of the prompt's tokens."""

import json
from typing import Any

import httpx
import pytest

from services.gateway.owner.generation import Delta, GenerateRequest
from services.gateway.prompt import shown_prompt
from shared.protocol import TokenLogprobs
from tests.integration.http.loop_lag import LoopLag
from tests.support.cases.http_bodies import CHAT, TEXT, chat_body, events_of, text_body
from tests.support.fakes.served_app import ServedApp, Step
from tests.support.oracles.prompt_values import TokenValues, piece_of

pytestmark = pytest.mark.anyio
PROMPT = "hello big world, hello"


def values_of(num_tokens: int, num_top: int) -> list[TokenValues]:
    """Of all tokens but the first: none is among its likeliest."""
    top = tuple(range(60, 60 + num_top))
    return [TokenValues(-at / 8, at + 30, top, (-0.25,) * num_top) for at in range(1, num_tokens)]


def scored(app: ServedApp) -> None:
    """The door answers " x", and says what was asked of the prompt."""
    (token_id,) = app.tokenizer.encode("x").ids

    def script(request: GenerateRequest) -> list[Step]:
        if request.prompt_logprobs >= 0:
            generation = app.door.generations[app.door.requests.index(request)]
            values = values_of(len(request.prompt_ids), request.prompt_logprobs)
            pieces = [piece_of(values[:2]), piece_of(values[2:], 3)] if len(values) > 2 else []
            generation.prompt_logprobs = pieces or [piece_of(values)] * bool(values)
        more = request.sampling.logprobs >= 0
        logprobs = (TokenLogprobs(-0.5, (token_id,), (-0.5,)),) if more else ()
        return [None, Delta((token_id,), logprobs, "length")]

    app.door.script = script


async def post(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> Any:
    response = await client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def _events(response: httpx.Response) -> list[Any]:
    *events, done = events_of(response.text)
    assert done == "[DONE]"
    return events


async def test_echo_puts_the_prompt_first(app: ServedApp, client: httpx.AsyncClient) -> None:
    scored(app)
    answer = await post(client, TEXT, text_body(PROMPT, echo=True))
    assert [choice["text"] for choice in answer["choices"]] == [f"{PROMPT}x"]
    assert answer["choices"][0]["logprobs"] is None
    assert app.door.requests[0].prompt_logprobs == -1
    prompts = [PROMPT, "a", app.tokenizer.encode("hello").ids]
    bodies: list[Any] = [prompts[:2], prompts[2]]
    shown = []
    for prompt in bodies:
        answer = await post(client, TEXT, text_body(prompt, echo=True, n=2))
        shown.append([choice["text"] for choice in answer["choices"]])
    assert shown == [[f"{PROMPT}x"] * 2 + ["ax"] * 2, ["hellox"] * 2]


async def test_a_stream_begins_with_it(app: ServedApp, client: httpx.AsyncClient) -> None:
    scored(app)
    response = await client.post(TEXT, json=text_body(PROMPT, echo=True, stream=True))
    texts = [event["choices"][0]["text"] for event in _events(response)]
    assert texts[0].startswith(PROMPT) and "".join(texts) == f"{PROMPT}x"


async def test_only_the_prompt(app: ServedApp, client: httpx.AsyncClient) -> None:
    scored(app)
    body = text_body(PROMPT, echo=True, max_tokens=0, stop=["o"], stop_token_ids=[5])
    answer = await post(client, TEXT, body)
    (choice,), usage = answer["choices"], answer["usage"]
    assert (choice["text"], choice["finish_reason"]) == (PROMPT, "length")
    assert usage["completion_tokens"] == 0
    assert usage["total_tokens"] == usage["prompt_tokens"]
    sampling = app.door.requests[0].sampling
    assert (sampling.max_tokens, sampling.ignore_eos, sampling.stop_token_ids) == (1, True, ())
    streamed = await client.post(TEXT, json=body | {"stream": True})
    assert "".join(e["choices"][0]["text"] for e in _events(streamed)) == PROMPT


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_cover_the_prompt(
    app: ServedApp, client: httpx.AsyncClient, *, stream: bool
) -> None:
    scored(app)
    ids = app.tokenizer.encode(PROMPT).ids
    body = text_body(ids, echo=True, logprobs=2, max_tokens=1, stream=stream)
    response = await client.post(TEXT, json=body)
    events = _events(response) if stream else [response.json()]
    found: dict[str, list[Any]] = {}
    for choice in (choice for event in events for choice in event["choices"]):
        for name, items in (choice["logprobs"] or {}).items():
            found.setdefault(name, []).extend(items)
    values = values_of(len(ids), 2)
    assert "".join(found["tokens"]) == f"{PROMPT}x"
    assert found["token_logprobs"] == [None, *(one.logprob for one in values), -0.5]
    assert found["top_logprobs"][0] is None
    names = [app.tokenizer.decode([token_id]) for token_id in (60, 61)]
    for name, value, top in zip(
        found["tokens"][1:], values, found["top_logprobs"][1:], strict=False
    ):
        assert top == {name: value.logprob} | dict.fromkeys(names, -0.25)
    ends = [len("".join(found["tokens"][:at])) for at in range(len(found["tokens"]))]
    assert found["text_offset"] == ends
    if stream:
        assert "".join(event["choices"][0]["text"] for event in events) == f"{PROMPT}x"


async def test_prompt_logprobs_in_the_shape_of_vllm(
    app: ServedApp, client: httpx.AsyncClient
) -> None:
    scored(app)
    ids = app.tokenizer.encode(PROMPT).ids
    text = await post(client, TEXT, text_body(ids, prompt_logprobs=1, n=2))
    chat = await post(client, CHAT, chat_body(prompt_logprobs=1, n=2))
    assert "prompt_logprobs" not in text and "prompt_logprobs" not in chat["choices"][0]
    first, second = (choice["prompt_logprobs"] for choice in text["choices"])
    assert first == second and len(first) == len(ids) and first[0] is None
    name = app.tokenizer.decode([ids[1]])
    assert first[1] == {
        str(ids[1]): {"logprob": -0.125, "rank": 31, "decoded_token": name},
        "60": {"logprob": -0.25, "rank": 1, "decoded_token": app.tokenizer.decode([60])},
    }
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]
    only = await post(client, TEXT, text_body(ids[:1], prompt_logprobs=0))
    assert only["choices"][0]["prompt_logprobs"] == [None]


async def test_each_field_has_as_many_alternatives_as_it_asks_for(
    app: ServedApp, client: httpx.AsyncClient
) -> None:
    scored(app)
    body = text_body(PROMPT, echo=True, logprobs=1, prompt_logprobs=3)
    (choice,) = (await post(client, TEXT, body))["choices"]
    assert app.door.requests[0].prompt_logprobs == 3
    assert {len(top) for top in choice["logprobs"]["top_logprobs"][1:-1]} == {2}
    assert {len(each) for each in choice["prompt_logprobs"][1:]} == {4}


async def test_more_than_an_answer_may_show_is_refused(
    app: ServedApp, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shown_prompt, "MAX_SHOWN_BYTES", 2000)
    scored(app)
    await post(client, TEXT, text_body([5] * 10, prompt_logprobs=20))
    for fields in ({"prompt_logprobs": 20, "n": 2}, {"echo": True, "logprobs": 20, "n": 2}):
        response = await client.post(TEXT, json=text_body([5] * 10, **fields))
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["param"] == next(iter(fields)) and "fewer" in error["message"]


async def test_a_long_prompt_holds_up_nobody(app: ServedApp, client: httpx.AsyncClient) -> None:
    """Some ten thousand numbers, while the loop goes on in turns of a few milliseconds."""
    scored(app)
    ids = [5] * 200
    body = text_body([ids] * 8, echo=True, logprobs=20, prompt_logprobs=20)
    lag = LoopLag()
    async with lag.measured():
        answer = json.loads((await client.post(TEXT, json=body)).content)
    assert len(answer["choices"]) == 8
    assert all(len(choice["prompt_logprobs"]) == 200 for choice in answer["choices"])
    assert lag.longest_s < 0.25
