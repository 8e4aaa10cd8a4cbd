"""Requests that no client should send, made of those that it may."""

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

FEW = {"max_tokens": 1, "ignore_eos": True}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
BODIES: dict[str, list[dict[str, Any]]] = {
    "/v1/completions": [
        {"model": "demo", "prompt": "one two", **FEW, "temperature": 0, "stop": ["x"]},
        {
            "model": "demo",
            "prompt": [5, 6, 7],
            **FEW,
            "logprobs": 2,
            "logit_bias": {"5": 1.5},
            "seed": 1,
        },
        {"model": "demo", "prompt": ["a", "b"], **FEW, "n": 2, "stream": True},
        {"model": "demo", "prompt": "a", **FEW, "guided_choice": ["yes", "no"], "top_k": 3},
        {"model": "demo", "prompt": "a", **FEW, "min_p": 0.1, "stop_token_ids": [3], "top_p": 0.5},
    ],
    "/v1/chat/completions": [
        {"model": "demo", "messages": [{"role": "user", "content": "hi"}], **FEW},
        {
            "model": "demo",
            "messages": [
                {"role": "system", "content": [{"type": "text", "text": "s"}]},
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": None, "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "c1", "content": "2"},
            ],
            "tools": [TOOL],
            "tool_choice": "auto",
            **FEW,
        },
        {
            "model": "demo",
            "messages": [{"role": "user", "content": "hi"}],
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": SCHEMA},
            },
            "stream": True,
            "stream_options": {"include_usage": True},
            **FEW,
        },
    ],
    "/v1/responses": [
        {"model": "demo", "input": "hi", "max_output_tokens": 1},
        {
            "model": "demo",
            "instructions": "be brief",
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
            "max_output_tokens": 1,
            "stream": True,
        },
    ],
    "/v1/messages": [
        {"model": "demo", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]},
        {
            "model": "demo",
            "max_tokens": 1,
            "system": [{"type": "text", "text": "s"}],
            "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
            "tools": [{"name": "f", "input_schema": SCHEMA}],
        },
    ],
    "/v1/messages/count_tokens": [
        {"model": "demo", "messages": [{"role": "user", "content": "hi"}]},
    ],
    "/tokenize": [{"prompt": "one two"}, {"messages": [{"role": "user", "content": "hi"}]}],
    "/detokenize": [{"tokens": [5, 6, 7]}],
}
"""valid, by path"""
NOT_A_NUMBER, INFINITE = "@nan@", "@infinity@"
"""that JSON has no value for, as Python writes them"""
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2, 255, 2**31, 2**63, 2**64, 10**30, -(10**400)),
    *(0.5, -0.0, 1e308, 1e-320, NOT_A_NUMBER, INFINITE, "", "x", "null", "\x00", "\ud800"),
    *("\u202e", "é" * 300, "9" * 5000, "{{ 7 * 7 }}", "{% for a in range(10**9) %}", "a b " * 500),
    *([], [[]], [None], [1, "a", {}], ["x"] * 300, list(range(2000)), {}, {"type": "x"}),
    *({"a": {"a": {"a": {}}}}, {"": ""}, {"__proto__": 1}, {"$ref": "#"}),
    *({"type": "object", "properties": {"a": {"$ref": "#"}}}, {"pattern": "(a+)+$"}),
)
ODD_KEYS = ("", "x", "model", "stream", "n", "best_of", "echo", "user", "\x00", "é" * 100, "role")
LARGE_BYTES = 200_000


class OddRequest(NamedTuple):
    """What is sent."""

    path: str
    body: bytes


def odd_requests(numbers: random.Random) -> Iterator[OddRequest]:
    """Without end. One in eight is damaged as text, one in fifty is large."""
    paths = list(BODIES)
    while True:
        path = numbers.choice(paths)
        body = copy.deepcopy(numbers.choice(BODIES[path]))
        for _ in range(numbers.randrange(1, 5)):
            _change(body, numbers)
        text = _as_text(body)
        if numbers.random() < 0.125:
            text = numbers.choice(DAMAGES)(text, numbers)
        if numbers.random() < 0.02:
            text = numbers.choice(LARGE)
        yield OddRequest(path, text)


def odd_heads(numbers: random.Random) -> Iterator[bytes]:
    """Of HTTP. What comes behind one is not sent; then the client waits."""
    whole = (
        b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
        b"content-length: 2\r\n\r\n{}"
    )
    while True:
        head = bytearray(whole)
        for _ in range(numbers.randrange(1, 6)):
            at = numbers.randrange(len(head))
            head[at : at + numbers.randrange(3)] = numbers.randbytes(numbers.randrange(3))
        yield bytes(head)
        yield numbers.choice(HEADS)


def _change(body: dict[str, Any], numbers: random.Random) -> None:
    """One place of it."""
    holder, key = numbers.choice(list(_places(body)))
    what = numbers.random()
    if what < 0.6:
        holder[key] = copy.deepcopy(numbers.choice(ODD_VALUES))
    elif what < 0.75:
        del holder[key]
    elif isinstance(holder, dict):
        holder[numbers.choice(ODD_KEYS)] = copy.deepcopy(numbers.choice(ODD_VALUES))
    else:
        holder.extend([copy.deepcopy(holder[key])] * numbers.randrange(40))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each (holder, key or index) of a JSON value."""
    if isinstance(value, dict):
        keys: Any = list(value)
    elif isinstance(value, list):
        keys = range(min(len(value), 20))
    else:
        return
    for key in keys:
        yield value, key
        yield from _places(value[key])
    if isinstance(value, dict) and not value:
        value[""] = None
        yield value, ""


def _as_text(body: dict[str, Any]) -> bytes:
    text = json.dumps(body)
    for name, value in ((NOT_A_NUMBER, "NaN"), (INFINITE, "-Infinity")):
        text = text.replace(f'"{name}"', value)
    return text.encode()


def _cut(text: bytes, numbers: random.Random) -> bytes:
    return text[: numbers.randrange(len(text) + 1)]


def _flip(text: bytes, numbers: random.Random) -> bytes:
    damaged = bytearray(text)
    for _ in range(numbers.randrange(1, 4)):
        damaged[numbers.randrange(len(damaged))] = numbers.randrange(256)
    return bytes(damaged)


def _insert(text: bytes, numbers: random.Random) -> bytes:
    at = numbers.randrange(len(text) + 1)
    return text[:at] + numbers.choice(INSERTED) + text[at:]


def _double(text: bytes, numbers: random.Random) -> bytes:
    """Every key twice, or the whole body."""
    return text + text if numbers.random() < 0.3 else text[:-1] + b"," + text[1:]


def _random(text: bytes, numbers: random.Random) -> bytes:
    return numbers.randbytes(min(len(text), 200))


INSERTED = (
    b"\x00",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\\u",
    b"/*",
    b"[" * 500,
    b"1" * 5000,
    b"1e9999",
)
Damage = Callable[[bytes, random.Random], bytes]
DAMAGES: tuple[Damage, ...] = (_cut, _flip, _insert, _double, _random)
LARGE = (
    b"[" * LARGE_BYTES,
    b'{"a":' * (LARGE_BYTES // 5),
    b'{"prompt":"' + b"x" * LARGE_BYTES + b'","max_tokens":1}',
    b'{"prompt":[' + b"5," * (LARGE_BYTES // 2) + b'5],"max_tokens":1}',
    b'{"prompt":"a","max_tokens":' + b"9" * LARGE_BYTES + b"}",
    b"{" + b",".join(b'"k%d":0' % number for number in range(LARGE_BYTES // 10)) + b"}",
    b'{"messages":[' + b'{"role":"user","content":"a"},' * 5000 + b"{}]}",
    b'{"prompt":"' + b"\\ud83d" * (LARGE_BYTES // 6) + b'","max_tokens":1}',
)
HEADS = (
    b"\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 300 + b"\r\n",
    b"GET / HTTP/1.1\r\na: " + b"x" * 70_000 + b"\r\n\r\n",
    b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n{}",
    b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n"
    b"content-length: 2\r\n\r\n0\r\n\r\n",
    b"POST /v1/completions HTTP/9.9\r\nhost: a\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200,
)
