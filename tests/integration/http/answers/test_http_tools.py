"""Tools and reasoning over a real socket: whole and streamed answers say the same, to plain HTTP
and to the unmodified `openai` client."""

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import openai
import pytest

from services.gateway.owner.generation import GenerateRequest
from shared.kv.block_hash import chain_hashes, root_hash
from tests.support.cases.http_bodies import CHAT, TEXT, chat_body, events_of, text_body
from tests.support.fakes.served_app import ServedApp, Step, delta, serve_app
from tests.support.models.text_models import MODEL_NAME, write_text_model
from tests.support.models.tool_models import (
    CALL_MESSAGES,
    HERMES,
    MISTRAL,
    THINKING,
    WEATHER,
    tagged_tokenizer,
)

pytestmark = pytest.mark.anyio

TEMPLATES = {"hermes": HERMES, "thinking": THINKING, "mistral": MISTRAL}
ARGUMENTS = '{"city": "Rome", "days": 2}'
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>'


@pytest.fixture(scope="module", params=TEMPLATES)
async def any_app(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, anyio_backend: object
) -> AsyncIterator[ServedApp]:
    tokenizer = tagged_tokenizer(special=True)
    directory = tmp_path_factory.mktemp(request.param)
    write_text_model(directory, tokenizer, TEMPLATES[request.param])
    async with serve_app(directory, tokenizer) as served:
        yield served


def only(name: str) -> pytest.MarkDecorator:
    """The tests of one model."""
    return pytest.mark.parametrize("any_app", [name], indirect=True, scope="module")


@pytest.fixture
async def client(any_app: ServedApp) -> AsyncIterator[httpx.AsyncClient]:
    await any_app.door.reset()
    async with httpx.AsyncClient(base_url=any_app.url, timeout=20) as http:
        yield http
    await any_app.door.reset()


@pytest.fixture
async def api(any_app: ServedApp, client: httpx.AsyncClient) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{any_app.url}/v1", api_key="none", max_retries=0, timeout=20
    ) as made:
        yield made


def body(**fields: Any) -> dict[str, Any]:
    return chat_body(tools=[WEATHER], **fields)


async def whole(client: httpx.AsyncClient, asked: dict[str, Any]) -> dict[str, Any]:
    response = await client.post(CHAT, json=asked)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def streamed(client: httpx.AsyncClient, asked: dict[str, Any]) -> list[Any]:
    response = await client.post(CHAT, json={**asked, "stream": True})
    assert response.status_code == 200, response.text
    return events_of(response.text)


def message_of(events: Sequence[Any]) -> tuple[dict[str, Any], str | None]:
    """What a client puts together from a stream: a message, and the finish reason."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    reason = None
    for event in events:
        for choice in event["choices"] if isinstance(event, dict) else ():
            part = choice["delta"]
            reason = choice["finish_reason"] or reason
            for name in ("content", "reasoning_content"):
                message[name] += part.get(name) or ""
            for call in part.get("tool_calls", ()):
                if "id" in call:
                    assert call["index"] == len(message["tool_calls"])
                    message["tool_calls"].append(json.loads(json.dumps(call)))
                else:
                    function = message["tool_calls"][call["index"]]["function"]
                    function["arguments"] += call["function"]["arguments"]
    for call in message["tool_calls"]:
        del call["index"]
    return message, reason


def same(message: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two messages say the same, apart from the ids that each request has of its own."""

    def plain(one: dict[str, Any]) -> Any:
        calls = [call["function"] for call in one.get("tool_calls", ())]
        return one["content"] or "", one.get("reasoning_content", ""), calls

    return bool(plain(message) == plain(other))


@only("hermes")
async def test_a_call_whole_and_streamed(any_app: ServedApp, client: httpx.AsyncClient) -> None:
    any_app.answer(f"Let me see.\n{CALL}\n{CALL}\n")
    answer = await whole(client, body())
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me see."
    first, second = choice["message"]["tool_calls"]
    assert first["function"] == {"name": "weather", "arguments": ARGUMENTS}
    assert first["type"] == "function"
    assert first["id"] != second["id"]
    events = await streamed(client, body())
    message, reason = message_of(events)
    assert same(message, choice["message"])
    assert reason == "tool_calls"
    starts = [event["choices"][0]["delta"] for event in events[:-1] if event["choices"]]
    opened = [part["tool_calls"][0] for part in starts if "tool_calls" in part]
    assert opened[0]["function"] == {"name": "weather", "arguments": ""}
    assert len(opened) > 6
    rid = any_app.door.requests[-1].rid
    assert events[0]["id"] == f"chatcmpl-{rid}"
    assert message["tool_calls"][0]["id"].startswith("call_")


@only("hermes")
async def test_only_calls_have_no_content(any_app: ServedApp, client: httpx.AsyncClient) -> None:
    any_app.answer(CALL)
    choice = (await whole(client, body()))["choices"][0]
    assert choice["message"]["content"] is None
    assert "reasoning_content" not in choice["message"]


@only("hermes")
async def test_tokens_that_arrive_together_change_nothing(
    any_app: ServedApp, client: httpx.AsyncClient
) -> None:
    text = f"<think>\nhm\n</think>\n\nSo: {CALL}"
    ids = any_app.tokenizer.encode(text, add_special_tokens=False).ids
    made = []
    for size in (1, 3, len(ids)):

        def script(request: GenerateRequest, size: int = size) -> Sequence[Step]:
            groups = [tuple(ids[at : at + size]) for at in range(0, len(ids), size)]
            return [delta(group, "stop" if group is groups[-1] else None) for group in groups]

        any_app.door.script = script
        answer = await whole(client, body())
        made.append((answer["choices"][0]["message"], answer["usage"]))
    assert same(made[0][0], made[1][0])
    assert same(made[0][0], made[2][0])
    assert made[0][1] == made[1][1] == made[2][1]


@only("hermes")
async def test_what_is_no_call_is_content(any_app: ServedApp, client: httpx.AsyncClient) -> None:
    text = '<tool_call>\n{"name": "unknown", "arguments": {}}\n</tool_call>'
    any_app.answer(text)
    choice = (await whole(client, body()))["choices"][0]
    assert choice["message"]["content"] == text
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "stop"
    message, reason = message_of(await streamed(client, body()))
    assert (message["content"], reason) == (text, "stop")


@only("hermes")
@pytest.mark.parametrize("fields", [{}, {"tools": [WEATHER], "tool_choice": "none"}])
async def test_without_tools_a_call_is_text(
    any_app: ServedApp, client: httpx.AsyncClient, fields: dict[str, Any]
) -> None:
    """Special tokens leave the text, as everywhere."""
    any_app.answer(f"a{CALL}")
    choice = (await whole(client, chat_body(**fields)))["choices"][0]
    assert choice["message"]["content"] == "a" + CALL.replace("<tool_call>", "").replace(
        "</tool_call>", ""
    )
    assert choice["finish_reason"] == "stop"


@only("hermes")
async def test_without_parallel_calls_the_answer_ends_with_the_first(
    any_app: ServedApp, client: httpx.AsyncClient
) -> None:
    any_app.answer(f"{CALL}\n{CALL}")
    answer = await whole(client, body(parallel_tool_calls=False))
    assert len(answer["choices"][0]["message"]["tool_calls"]) == 1
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
    rid = any_app.door.requests[-1].rid
    assert any_app.door.finished == [(rid, "stop", answer["usage"]["completion_tokens"])]
    message, reason = message_of(await streamed(client, body(parallel_tool_calls=False)))
    assert (len(message["tool_calls"]), reason) == (1, "tool_calls")


@only("hermes")
async def test_a_call_that_max_tokens_cuts(any_app: ServedApp, client: httpx.AsyncClient) -> None:
    any_app.answer(CALL)
    num_tokens = len(any_app.tokenizer.encode(CALL).ids) - 8
    choice = (await whole(client, body(max_tokens=num_tokens)))["choices"][0]
    assert choice["finish_reason"] == "length"
    cut = choice["message"]["tool_calls"][0]["function"]["arguments"]
    assert ARGUMENTS.startswith(cut)
    assert cut != ARGUMENTS


@only("hermes")
async def test_reasoning_and_its_tokens(any_app: ServedApp, client: httpx.AsyncClient) -> None:
    any_app.answer("<think>\nhello world\n</think>\n\nYes.")
    answer = await whole(client, chat_body())
    message = answer["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hello world", "Yes.")
    thought = any_app.tokenizer.encode("<think>\nhello world\n</think>", add_special_tokens=False)
    details = answer["usage"]["completion_tokens_details"]
    assert details == {"reasoning_tokens": len(thought.ids)}
    asked = chat_body(stream_options={"include_usage": True})
    events = await streamed(client, asked)
    assert same(message_of(events)[0], message)
    assert events[-2]["usage"]["completion_tokens_details"] == details
    both = chat_body(stream_options={"continuous_usage_stats": True}, logprobs=True)
    assert same(message_of(await streamed(client, both))[0], message)


@only("thinking")
async def test_reasoning_that_the_prompt_opens(
    any_app: ServedApp, client: httpx.AsyncClient
) -> None:
    any_app.answer("hm\n</think>\n\nYes.")
    message = (await whole(client, chat_body()))["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hm", "Yes.")
    assert same(message_of(await streamed(client, chat_body()))[0], message)


@only("hermes")
async def test_logprobs_of_all_tokens(any_app: ServedApp, client: httpx.AsyncClient) -> None:
    any_app.answer(f"<think>hm</think>So {CALL}")
    answer = await whole(client, body(logprobs=True, top_logprobs=1))
    entries = answer["choices"][0]["logprobs"]["content"]
    num_tokens = answer["usage"]["completion_tokens"]
    assert len(entries) == num_tokens
    events = await streamed(client, body(logprobs=True, top_logprobs=1))
    held = [event["choices"][0]["logprobs"] for event in events[:-1]]
    assert [entry for one in held if one for entry in one["content"]] == entries


@only("hermes")
async def test_stop_strings_apply_to_the_text_as_it_is(
    any_app: ServedApp, client: httpx.AsyncClient
) -> None:
    any_app.answer(f"So {CALL}")
    choice = (await whole(client, body(stop=["Rome"])))["choices"][0]
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "'


@only("mistral")
async def test_mistral(any_app: ServedApp, client: httpx.AsyncClient) -> None:
    any_app.answer(f'[TOOL_CALLS] [{{"name": "weather", "arguments": {ARGUMENTS}}}]')
    choice = (await whole(client, body()))["choices"][0]
    call = choice["message"]["tool_calls"][0]
    assert call["function"] == {"name": "weather", "arguments": ARGUMENTS}
    assert len(call["id"]) == 9
    again = [*CALL_MESSAGES, {**choice["message"], "refusal": None}]
    tool = {"role": "tool", "tool_call_id": call["id"], "content": "rain"}
    await whole(client, body() | {"messages": [*again, tool]})


@only("hermes")
async def test_choices_have_calls_of_their_own(
    any_app: ServedApp, client: httpx.AsyncClient
) -> None:
    any_app.answer(CALL)
    choices = (await whole(client, body(n=2)))["choices"]
    ids = {choice["message"]["tool_calls"][0]["id"] for choice in choices}
    assert len(ids) == 2


@only("hermes")
async def test_the_prompt_holds_tools_and_calls(
    any_app: ServedApp, client: httpx.AsyncClient
) -> None:
    await whole(client, body() | {"messages": CALL_MESSAGES})
    request = any_app.door.requests[-1]
    text = any_app.tokenizer.decode(list(request.prompt_ids), skip_special_tokens=False)
    assert '"description": "The weather in a city"' in text
    assert '{"name": "weather", "arguments": {"city": "Rome"}}' in text
    assert "<tool_response>\nsunny\n</tool_response>" in text
    hashes = chain_hashes(root_hash(b"", "default"), list(request.prompt_ids), 16)
    assert request.block_hashes == tuple(hashes)
    asked = {"messages": CALL_MESSAGES, "tools": [WEATHER]}
    counted = await client.post("/tokenize", json=asked)
    assert counted.json()["tokens"] == list(request.prompt_ids)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"functions": [{"name": "f"}]}, "functions"),
    (CHAT, {"function_call": {"name": "f"}}, "function_call"),
    (TEXT, {"tools": [WEATHER]}, "tools"),
]


@only("hermes")
@pytest.mark.parametrize(("path", "fields", "param"), REFUSED)
async def test_row_79_what_is_not_supported_is_named(
    any_app: ServedApp, client: httpx.AsyncClient, path: str, fields: dict[str, Any], param: str
) -> None:
    asked = chat_body(**fields) if path == CHAT else text_body(**fields)
    response = await client.post(path, json=asked)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (param, "unsupported_parameter")
    assert not any_app.door.requests


@only("hermes")
async def test_row_80_a_schema_that_cannot_be_followed_is_refused(
    any_app: ServedApp, client: httpx.AsyncClient
) -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(a+)+$"}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    asked = chat_body(tools=[tool], tool_choice="required")
    response = await client.post(CHAT, json=asked)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == ("tools", "invalid_schema")
    await whole(client, chat_body(tools=[tool]))


@only("hermes")
@pytest.mark.parametrize("fields", [{"tool_choice": "required"}, {}])
async def test_a_grammar_goes_to_the_engine_where_a_call_must_match(
    any_app: ServedApp, client: httpx.AsyncClient, fields: dict[str, Any]
) -> None:
    """Required always; auto because the tool is strict."""
    await whole(client, body(**fields))
    assert '"Oslo"' in any_app.door.requests[-1].sampling.grammar
    loose = {"type": "function", "function": {**WEATHER["function"], "strict": False}}
    await whole(client, chat_body(tools=[loose]))
    assert any_app.door.requests[-1].sampling.grammar == ""


async def test_a_template_without_tools_is_named(
    client_of_plain: httpx.AsyncClient,
) -> None:
    response = await client_of_plain.post(CHAT, json=body())
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tools"
    assert "chat template does not mention tools" in response.json()["error"]["message"]
    await whole(client_of_plain, body(tool_choice="none"))


@pytest.fixture
async def client_of_plain(app: ServedApp) -> AsyncIterator[httpx.AsyncClient]:
    """A model whose template knows no tools."""
    async with httpx.AsyncClient(base_url=app.url, timeout=20) as http:
        yield http


@only("hermes")
async def test_the_openai_client(any_app: ServedApp, api: openai.AsyncOpenAI) -> None:
    any_app.answer(f"<think>\nhm\n</think>\n\nLet me see. {CALL}")
    messages = CALL_MESSAGES[:1]
    asked: Any = {"model": MODEL_NAME, "messages": messages, "tools": [WEATHER]}
    made = await api.chat.completions.create(**asked)
    message = made.choices[0].message
    assert message.tool_calls is not None
    call = message.tool_calls[0]
    assert call.type == "function"
    assert json.loads(call.function.arguments) == {"city": "Rome", "days": 2}
    assert made.usage is not None
    assert made.usage.completion_tokens_details is not None
    assert made.usage.completion_tokens_details.reasoning_tokens
    result = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
    echoed = message.model_dump(exclude_none=True)
    again: Any = {"model": MODEL_NAME, "messages": [*messages, echoed, result]}
    await api.chat.completions.create(**again)
    async with api.chat.completions.stream(**asked) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in kinds
    assert final.choices[0].finish_reason == "tool_calls"
    last = final.choices[0].message
    assert last.tool_calls is not None
    assert last.tool_calls[0].function.arguments == ARGUMENTS
    assert last.content == "Let me see."
