"""Bad request bodies, one case per row of the list of inputs the gateway must refuse.

The failure guarded: a body that is accepted by accident, answered with a 5xx or a framework's
own error shape, or that stops the gateway from serving the next request. Through a real socket;
what is checked after every case is in `refusals.py`.
"""

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.integration.http.refusals import Refusals, check_error
from tests.support.cases.http_bodies import TEXT, chat_body, text_body
from tests.support.fakes.served_app import ServedApp
from tests.support.models.text_models import MAX_MODEL_LEN, MODEL_NAME

pytestmark = pytest.mark.anyio
LONE = '"\\ud800"'
NESTED = "[" * 33 + "]" * 33


def raw(text: str) -> bytes:
    return text.encode()


def with_field(field: str) -> bytes:
    """A good chat body plus one more field, as it stands in JSON."""
    return raw(json.dumps(chat_body())[:-1] + f", {field}}}")


def content_as(text: str) -> bytes:
    """A chat body whose content is given as JSON text."""
    return raw(json.dumps(chat_body("@")).replace('"@"', text))


def chat(**fields: Any) -> bytes:
    return raw(json.dumps(chat_body(**fields)))


def message(**fields: Any) -> bytes:
    return raw(json.dumps({"model": MODEL_NAME, "messages": [fields]}))


def message_text(fields: str) -> bytes:
    return raw(f'{{"model": "{MODEL_NAME}", "messages": [{{{fields}, "content": "a"}}]}}')


def case(row: str, body: bytes, code: str | None, param: str | None = None) -> Any:
    return pytest.param(body, code, param, id=f"row-{row}")


UNSUPPORTED = [
    ("54", "best_of", "2"),
    ("54", "use_beam_search", "true"),
    ("54", "echo", "true"),
    ("54", "suffix", '"x"'),
    ("76", "chat_template", '"{{ x }}"'),
    ("77", "kv_transfer_params", '{"remote_host": "10.0.0.1"}'),
    ("77", "remote_host", '"10.0.0.1"'),
    ("77", "bootstrap_room", "5"),
    ("77", "request_id", '"mine"'),
    ("78", "prompt_embeds", '"gASVAA=="'),
    ("78", "multi_modal_data", '{"image": "gASVAA=="}'),
]
"""row, field, value in JSON"""

CASES = [
    case("20", b"", "invalid_json"),
    case("20-space", b" \n", "invalid_json"),
    case("21-null", b"null", "invalid_body"),
    case("21-number", b"5", "invalid_body"),
    case("21-string", b'"x"', "invalid_body"),
    case("21-list", b"[]", "invalid_body"),
    case("22-cut", chat()[:-1], "invalid_json"),
    case("22-garbage", chat() + b"x", "invalid_json"),
    case("22-two", chat() + chat(), "invalid_json"),
    case("23-comment", b'{"a": 1 /* */}', "invalid_json"),
    case("23-line-comment", b'{"a": 1 // \n}', "invalid_json"),
    case("23-quotes", b"{'a': 1}", "invalid_json"),
    case("23-comma", b'{"a": 1,}', "invalid_json"),
    case("23-zero", b'{"n": 01}', "invalid_json"),
    case("23-plus", b'{"n": +1}', "invalid_json"),
    case("23-hex", b'{"n": 0x10}', "invalid_json"),
    case("24", b'{"n": 1, "n": 99999}', "duplicate_key", "n"),
    case("24-nested", message_text('"role": "user", "role": "system"'), "duplicate_key", "role"),
    case("25-nan", with_field('"top_p": NaN'), "invalid_number"),
    case("25-infinity", with_field('"top_p": -Infinity'), "invalid_number"),
    case("26", with_field('"top_p": 1e999'), "invalid_number"),
    case("26-negative", with_field('"top_p": -1e999'), "invalid_number"),
    case("27-33", with_field(f'"x": {NESTED[1:-1]}'), "json_too_deep"),
    case("27-32", with_field(f'"stop": {NESTED[2:-2]}'), "invalid_value", "stop"),
    case("27-1000", with_field(f'"x": {"[" * 1000 + "]" * 1000}'), "json_too_deep"),
    case("27-100000", b"[" * 100_000, "json_too_deep"),
    case("27-objects", b'{"a":' * 100_000, "json_too_deep"),
    case("28-5000", with_field('"seed": ' + "9" * 5000), "invalid_number"),
    case("28-400", with_field('"seed": ' + "9" * 400), "invalid_number"),
    case("29", b'{"a": "\xff"}', "invalid_utf8"),
    case("29-overlong", b'{"a": "\xc0\xaf"}', "invalid_utf8"),
    case("30", b'{"a": "\xed\xa0\x80"}', "invalid_utf8"),
    case("31-bom", b"\xef\xbb\xbf" + chat(), "invalid_utf8"),
    case("31-utf16", chat().decode().encode("utf-16"), "invalid_utf8"),
    case("31-utf16-no-bom", chat().decode().encode("utf-16-le"), "invalid_utf8"),
    case("31-utf32", chat().decode().encode("utf-32"), "invalid_utf8"),
    case("77-priority", with_field('"priority": -1'), "invalid_value", "priority"),
    case("77-priority-8", with_field('"priority": 8'), "invalid_value", "priority"),
    case("32-content", content_as(LONE), "invalid_unicode", "messages[0].content"),
    case("32-stop", with_field(f'"stop": ["a", {LONE}]'), "invalid_unicode", "stop[1]"),
    case("32-model", raw(f'{{"model": {LONE}}}'), "invalid_unicode", "model"),
    case("32-key", with_field(f"{LONE}: 1"), "invalid_unicode", "?"),
    case(
        "35",
        raw("{" + ",".join(f'"k{index}":1' for index in range(300_000)) + "}"),
        "too_many_fields",
    ),
    case(
        "36",
        raw(json.dumps(chat_body() | {"messages": [{"role": "user", "content": ""}] * 100_000})),
        "too_many_messages",
        "messages",
    ),
    *(
        case(f"37-{name}-used", with_field(f'"{name}": {value}'), "unsupported_parameter", name)
        for name, value in {"store": "true", "service_tier": '"flex"'}.items()
    ),
    case("37-metadata-used", with_field('"metadata": 5'), "invalid_value", "metadata"),
    *(
        case(f"{row}-{name}", with_field(f'"{name}": {value}'), "unsupported_parameter", name)
        for row, name, value in UNSUPPORTED
    ),
    case(
        "76-chat_template_kwargs",
        chat(chat_template_kwargs={"messages": []}),
        "unsupported_parameter",
        "chat_template_kwargs.messages",
    ),
    case("38-missing", raw('{"messages": [{"role": "user", "content": "a"}]}'), None, "model"),
    case("38-number", chat(model=123), None, "model"),
    case("38-null", chat(model=None), None, "model"),
    case("40-missing", raw(json.dumps({"model": MODEL_NAME})), None, "messages"),
    case("40-empty", chat(messages=[]), None, "messages"),
    case("40-null", chat(messages=None), None, "messages"),
    case("40-object", b"{}", None, "messages"),
    case("40-no-list", chat(messages={"role": "user"}), None, "messages"),
    case("41-unknown", message(role="robot", content="a"), None, "messages[0].role"),
    case("41-missing", message(content="a"), None, "messages[0].role"),
    case("41-null", message(role=None, content="a"), None, "messages[0].role"),
    case("41-number", message(role=5, content="a"), None, "messages[0].role"),
    case("42-null", chat(content=None), None, "messages[0].content"),
    case("42-number", chat(content=5), None, "messages[0].content"),
    case("42-object", chat(content={"a": {}}), None, "messages[0].content"),
    case("42-missing", message(role="user"), None, "messages[0].content"),
    *(
        case(
            f"43-{index}",
            chat(content=[{"type": "image_url", "image_url": {"url": url}}]),
            "unsupported_content",
            "messages[0].content[0]",
        )
        for index, url in enumerate(
            ("data:image/png;base64,AA==", "file:///etc/passwd", "http://169.254.169.254/")
        )
    ),
    case("44-string", chat(max_tokens="10"), None, "max_tokens"),
    case("44-float", chat(max_tokens=1.5), None, "max_tokens"),
    case("44-true", chat(max_tokens=True), None, "max_tokens"),
    case("44-newer", chat(max_completion_tokens="10"), None, "max_completion_tokens"),
    case("45-zero", chat(max_tokens=0), None, "max_tokens"),
    case("45-negative", chat(max_tokens=-1), None, "max_tokens"),
    case("45-huge", chat(max_tokens=2**63), None, "max_tokens"),
    case("46", chat(max_tokens=5, max_completion_tokens=6), None, "max_completion_tokens"),
    case("47-string", chat(stream="true"), None, "stream"),
    case("47-number", chat(stream=1), None, "stream"),
    case("48-alone", chat(stream_options={"include_usage": True}), None, "stream_options"),
    case(
        "48-unknown",
        chat(stream=True, stream_options={"include_obfuscation": True}),
        None,
        "stream_options",
    ),
    case("48-type", chat(stream=True, stream_options=5), None, "stream_options"),
    case("49-low", chat(temperature=-0.1), None, "temperature"),
    case("49-high", chat(temperature=2.1), None, "temperature"),
    case("49-string", chat(temperature="hot"), None, "temperature"),
    case("51-zero", chat(top_p=0), None, "top_p"),
    case("51-negative", chat(top_p=-1), None, "top_p"),
    case("51-high", chat(top_p=1.1), None, "top_p"),
    case("52-low", chat(top_k=-2), None, "top_k"),
    case("52-float", chat(top_k=1.5), None, "top_k"),
    case("52-huge", chat(top_k=10**12), None, "top_k"),
    case("53", chat(n=0), None, "n"),
    case("55", chat(logprobs=True, top_logprobs=21), None, "top_logprobs"),
    case("55-negative", chat(logprobs=True, top_logprobs=-1), None, "top_logprobs"),
    case("55-alone", chat(top_logprobs=2), None, "top_logprobs"),
    case("55-prompt", chat(prompt_logprobs=-1), None, "prompt_logprobs"),
    case("55-prompt-stream", chat(prompt_logprobs=1, stream=True), None, "prompt_logprobs"),
    case("57-float", chat(seed=1.5), None, "seed"),
    case("57-huge", chat(seed=2**64), None, "seed"),
    case("57-string", chat(seed="x"), None, "seed"),
    case("58", chat(min_tokens=5, max_tokens=4), None, "min_tokens"),
    case("64", chat(content="a" * 1_000_000), "context_length_exceeded", "messages"),
    case("71-empty", chat(stop=""), None, "stop"),
    case("71-number", chat(stop=5), None, "stop"),
    case("71-numbers", chat(stop=[1]), None, "stop"),
    case("71-five", chat(stop=list("abcde")), None, "stop"),
    case("71-long", chat(stop="x" * 2**20), None, "stop"),
    case("stop-id", chat(stop_token_ids=[10**6]), None, "stop_token_ids"),
]


@pytest.mark.parametrize(("body", "code", "param"), CASES)
async def test_is_refused(
    refusals: Refusals, body: bytes, code: str | None, param: str | None
) -> None:
    await refusals.post(body, code, param)


async def test_row_43_nothing_is_fetched(refusals: Refusals) -> None:
    """The URL of an image part leads to a server of ours: nobody connects to it."""
    visitors: list[object] = []
    server = await asyncio.start_server(lambda *streams: visitors.append(streams), "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/x.png"
        part = {"type": "image_url", "image_url": {"url": url}}
        await refusals.post(chat(content=[part]), "unsupported_content", "messages[0].content[0]")
    assert visitors == []


PROMPTS = {
    "40-missing": None,
    "40-null": None,
    "60-empty": "",
    "62-empty": [],
    "62-negative": [-1],
    "62-vocab": [10_000],
    "62-huge": [2**40],
    "62-float": [1.5],
    "62-true": [True],
    "62-mixed": [1, "a"],
}


@pytest.mark.parametrize("row", PROMPTS)
async def test_prompt_is_refused(refusals: Refusals, row: str) -> None:
    body = text_body(PROMPTS[row])
    if row == "40-missing":
        del body["prompt"]
    await refusals.post(json.dumps(body).encode(), None, "prompt", path=TEXT)


async def test_row_62_the_first_id_beyond_the_vocabulary(
    app: ServedApp, refusals: Refusals
) -> None:
    body = text_body([app.tokenizer.get_vocab_size()])
    await refusals.post(json.dumps(body).encode(), "invalid_value", "prompt", path=TEXT)


@pytest.mark.parametrize(("name", "value"), [("best_of", 2), ("suffix", "x")])
async def test_row_54_of_completions(refusals: Refusals, name: str, value: Any) -> None:
    body = json.dumps(text_body(**{name: value})).encode()
    await refusals.post(body, "unsupported_parameter", name, path=TEXT)


async def test_row_55_of_completions(refusals: Refusals) -> None:
    for name in ("logprobs", "prompt_logprobs"):
        body = json.dumps(text_body(**{name: 21})).encode()
        await refusals.post(body, "invalid_value", name, path=TEXT)


async def test_row_45_of_completions(refusals: Refusals) -> None:
    for fields in ({}, {"echo": False}, {"logprobs": 1}):
        body = json.dumps(text_body(max_tokens=0, **fields)).encode()
        await refusals.post(body, "invalid_value", "max_tokens", path=TEXT)


@pytest.mark.parametrize("model", ["nobody", "../../x", "m" * 10_000, "a\nb\u202ec"])
async def test_row_39_unknown_model(refusals: Refusals, model: str) -> None:
    response = await refusals.post(chat(model=model), "model_not_found", "model", status=404)
    assert model not in response.json()["error"]["message"]
    assert MODEL_NAME in response.json()["error"]["message"]


@pytest.mark.parametrize("num_tokens", [MAX_MODEL_LEN, MAX_MODEL_LEN - 1])
async def test_row_63_prompt_at_the_limit(
    app: ServedApp, client: httpx.AsyncClient, num_tokens: int
) -> None:
    response = await client.post(TEXT, json=text_body([5] * num_tokens))
    if num_tokens == MAX_MODEL_LEN:
        assert response.status_code == 400
        check_error(response.content, response.headers, 400, "context_length_exceeded", "prompt")
    else:
        assert response.status_code == 200
        assert response.json()["usage"]["completion_tokens"] == 1
        assert response.json()["choices"][0]["finish_reason"] == "length"
