"""The field tables: every field read, every neutral value neutral, nothing both."""

import typing
from collections.abc import Sequence
from typing import Any

import pytest
import typing_extensions
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsBase as TextParams

from services.gateway.owner.generation import Endpoint
from services.gateway.prompt.field_tables import IGNORED, NEUTRAL, OTHER, READERS
from services.gateway.prompt.request_fields import parse_request
from shared.errors import RequestError
from shared.fields import readers
from tests.support.cases.http_bodies import chat_body, text_body

ENDPOINTS: tuple[Endpoint, ...] = ("chat", "text")


def body_of(endpoint: Endpoint, **fields: Any) -> dict[str, Any]:
    return chat_body(**fields) if endpoint == "chat" else text_body(**fields)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_the_tables_do_not_overlap(endpoint: Endpoint) -> None:
    read = READERS[endpoint].keys()
    assert not read & NEUTRAL.keys()
    assert not read & IGNORED.keys()
    assert not NEUTRAL.keys() & IGNORED.keys()


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, values in NEUTRAL.items() for value in (*values, None)],
)
def test_neutral_values_change_nothing(endpoint: Endpoint, name: str, value: Any) -> None:
    plain = parse_request(body_of(endpoint, seed=1), endpoint)
    assert parse_request(body_of(endpoint, seed=1, **{name: value}), endpoint) == plain


@pytest.mark.parametrize("name", NEUTRAL)
def test_any_other_value_is_refused_by_name(name: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_request(chat_body(**{name: "surely not"}), "chat")
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", name)


@pytest.mark.parametrize("name", IGNORED)
def test_a_hint_of_another_type_is_told_its_type(name: str) -> None:
    with pytest.raises(RequestError, match=r"must be an? (string|object)") as caught:
        parse_request(chat_body(**{name: True}), "chat")
    assert (caught.value.code, caught.value.param) == ("invalid_value", name)


def test_true_is_not_one() -> None:
    with pytest.raises(RequestError):
        parse_request(chat_body(n=True), "chat")
    with pytest.raises(RequestError):
        parse_request(chat_body(store=0), "chat")
    with pytest.raises(RequestError):
        parse_request(chat_body(n=1.0), "chat")
    assert parse_request(chat_body(seed=1, best_of=1.0), "chat").seed == 1


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_null_means_absent(endpoint: Endpoint) -> None:
    """Row 44."""
    names = READERS[endpoint].keys() - {"model", "messages", "prompt", "seed"}
    nulls = dict.fromkeys(names)
    assert parse_request(body_of(endpoint, seed=1, **nulls), endpoint) == parse_request(
        body_of(endpoint, seed=1), endpoint
    )


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_null_of_a_field_of_the_other_endpoint_is_ignored(endpoint: Endpoint) -> None:
    """Clients send one set of fields to both."""
    names = set(READERS[OTHER[endpoint]]) - set(READERS[endpoint])
    assert names
    nulls = dict.fromkeys(names)
    assert parse_request(body_of(endpoint, seed=1, **nulls), endpoint) == parse_request(
        body_of(endpoint, seed=1), endpoint
    )


def test_everything_arrives() -> None:
    parsed = parse_request(
        chat_body(
            max_completion_tokens=9,
            max_tokens=9,
            temperature=0,
            top_p=0.5,
            top_k=-1,
            min_p=0.1,
            presence_penalty=2,
            frequency_penalty=-0.5,
            repetition_penalty=1.1,
            logit_bias={"7": -100, "0": 1.5},
            seed=-1,
            stop="x",
            stop_token_ids=[3],
            min_tokens=2,
            ignore_eos=True,
            logprobs=True,
            top_logprobs=5,
            stream=True,
            stream_options={"include_usage": True, "continuous_usage_stats": None},
            user="someone",
            metadata={"a": "b"},
        ),
        "chat",
    )
    assert (parsed.max_tokens, parsed.temperature, parsed.top_p, parsed.top_k) == (9, 0.0, 0.5, 0)
    assert (parsed.min_p, parsed.presence_penalty, parsed.frequency_penalty) == (0.1, 2.0, -0.5)
    assert (parsed.repetition_penalty, parsed.logit_bias) == (1.1, ((7, -100.0), (0, 1.5)))
    assert (parsed.seed, parsed.stop, parsed.stop_token_ids) == (2**63 - 1, ("x",), (3,))
    assert (parsed.min_tokens, parsed.ignore_eos, parsed.logprobs) == (2, True, 5)
    assert (parsed.stream, parsed.include_usage, parsed.continuous_usage) == (True, True, False)


@pytest.mark.parametrize("temperature", [5e-324, 1e-5])
def test_row_50_tiny_temperatures_are_greedy(temperature: float) -> None:
    assert parse_request(chat_body(temperature=temperature), "chat").temperature == 0.0


def test_seeds_are_drawn_when_none_is_given() -> None:
    drawn = {parse_request(chat_body(), "chat").seed for _ in range(8)}
    assert len(drawn) == 8
    assert all(0 <= seed < 2**63 for seed in drawn)


def test_messages_as_clients_echo_them() -> None:
    """An answer's message sent back as it came, and the other roles."""
    echoed: dict[str, Any] = {
        "role": "assistant",
        "content": "hi",
        "refusal": None,
        "tool_calls": [],
        "annotations": None,
        "audio": None,
        "function_call": None,
        "provider_specific_fields": None,
        "reasoning_details": [{"type": "reasoning.text", "text": "hm"}],
    }
    parts = [
        {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "b", "annotations": []},
    ]
    messages = [
        {"role": "developer", "content": "x"},
        echoed,
        {"role": "assistant", "content": None, "annotations": []},
        {"role": "user", "content": parts, "name": "me", "id": "msg_1"},
    ]
    parsed = parse_request(chat_body() | {"messages": messages}, "chat")
    assert parsed.messages == (
        {"role": "system", "content": "x"},
        {"role": "assistant", "content": "hi"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "ab", "name": "me"},
    )


@pytest.mark.parametrize(
    "field",
    [{"audio": {"id": "a"}}, {"function_call": {}}, {"images": ["a"]}, {"refusal": "I will not"}],
    ids=lambda field: next(iter(field)),
)
def test_message_fields_that_mean_something_are_refused(field: dict[str, Any]) -> None:
    message = {"role": "assistant", "content": "hi", **field}
    with pytest.raises(RequestError) as caught:
        parse_request(chat_body() | {"messages": [message]}, "chat")
    assert caught.value.param == f"messages[0].{next(iter(field))}"


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_every_field_that_openai_lets_be_null_may_be_null(endpoint: Endpoint) -> None:
    """By the types of OpenAI's own client. A prompt of null would mean OpenAI's own default."""
    kind = ChatParams if endpoint == "chat" else TextParams
    hints = typing_extensions.get_type_hints(kind)
    nullable = [name for name, hint in hints.items() if type(None) in typing.get_args(hint)]
    assert len(nullable) > 12
    nulls = dict.fromkeys(set(nullable) - {"prompt"})
    plain = parse_request(body_of(endpoint, seed=1), endpoint)
    assert parse_request(body_of(endpoint, **nulls) | {"seed": 1}, endpoint) == plain


def test_each_bad_field_says_what_is_wrong_with_it() -> None:
    with pytest.raises(RequestError) as caught:
        parse_request(chat_body(suffix="x", n=0, prompt_embeds="x", top_p=7), "chat")
    assert caught.value.param == "suffix"
    assert caught.value.message == (
        'suffix: not supported; leave it out or give ""; n: must be an integer from 1 to 128; '
        "prompt_embeds: not supported; leave it out; top_p: must be a number above 0.0 to 1.0"
    )


def test_many_bad_fields_are_named_within_a_short_text() -> None:
    many = dict.fromkeys(NEUTRAL, "x")
    with pytest.raises(RequestError) as caught:
        parse_request(chat_body(**many), "chat")
    assert caught.value.message.endswith(f" and {len(many) - 9} more")
    assert len(caught.value.message) < 400


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        (chat_body(foo=1), "foo: unknown field; leave it out"),
        (chat_body(foo=None), "foo: unknown field; leave it out"),
        (chat_body(**{"": 1}), "'': unknown field; leave it out"),
        (
            chat_body(temprature=1),
            "temprature: unknown field (did you mean temperature?); leave it out",
        ),
        (
            chat_body(max_new_tokens=5, top_p=7),
            "max_new_tokens: unknown field (did you mean max_tokens?); leave it out; "
            "top_p: must be a number above 0.0 to 1.0",
        ),
        (chat_body(logit_processors=[]), "logit_processors: unknown field; leave it out"),
        (chat_body(lora_path="x"), "lora_path: not supported; leave it out"),
    ],
)
def test_a_field_nobody_knows_is_told_from_one_that_is_not_supported(
    body: dict[str, Any], wrong: str
) -> None:
    with pytest.raises(RequestError) as caught:
        parse_request(body, "chat", refuse_unknown=True)
    assert (caught.value.message, caught.value.code) == (wrong, "unsupported_parameter")


def test_what_was_meant_is_sought_for_few_fields_and_short_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client may send a hundred thousand of them, and they are read on the event loop."""
    sought: list[str] = []

    def search(name: str, known: Sequence[str], **_: Any) -> list[str]:
        sought.extend([name] * len(known))
        return []

    monkeypatch.setattr(readers, "get_close_matches", search)
    many = {"temperature" * 1000: 1, **{f"temperatur{at}": 1 for at in range(1000)}}
    with pytest.raises(RequestError, match=r"and 99\d more$"):
        parse_request(chat_body() | many, "chat", refuse_unknown=True)
    assert (len(set(sought)), max(map(len, sought))) == (9, len("temperatur0"))


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 0},
        {"max_tokens": -4},
        {"max_tokens": -4, "best_of": 2},
        {"max_tokens": 2**31},
        {"max_tokens": "5"},
        {"max_tokens": True},
    ],
)
def test_max_tokens_of_a_completion_are_refused_in_the_same_words(fields: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        parse_request(text_body(**fields), "text")
    assert caught.value.message.startswith(
        "max_tokens: must be an integer from 1 to 2147483647, or 0 with echo: true"
    )


@pytest.mark.parametrize("name", ["max_completion_tokens", "messages", "chat_template_kwargs"])
def test_a_chat_s_fields_are_no_unknown_fields_of_a_completion(name: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_request(text_body(**{name: [{}]}), "text")
    assert caught.value.param == name


@pytest.mark.parametrize(
    ("options", "include", "continuous"),
    [
        ({"continuous_usage_stats": True}, False, True),
        ({"include_usage": False, "continuous_usage_stats": True}, False, False),
        ({"include_usage": None, "include_obfuscation": False}, False, False),
        ({"include_usage": True, "continuous_usage_stats": True}, True, True),
    ],
)
def test_no_usage_is_sent_where_it_is_not_wanted(
    options: dict[str, Any], include: bool, continuous: bool
) -> None:
    parsed = parse_request(chat_body(stream=True, stream_options=options), "chat")
    assert (parsed.include_usage, parsed.continuous_usage) == (include, continuous)
