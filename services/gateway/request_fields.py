"""Which fields each endpoint takes, how each is read, and which are accepted without effect.

Three tables say it all: the readers of the fields we implement, the values under which a field
that we do not implement changes nothing (`NEUTRAL`), and the fields whose value never matters
(`IGNORED`). Everything else is 400 `unsupported_parameter` with the field's name. Null means
absent, except where a value is required.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from services.gateway.client_text import shown
from services.gateway.field_readers import (
    Reader,
    flag,
    integer,
    invalid,
    number,
    same,
    stop,
    stop_token_ids,
    stream_options,
    text,
    token_ids,
    unsupported,
)
from services.gateway.generation import Endpoint
from services.gateway.messages import Message, read_messages
from shared.errors import RequestError

MAX_TOKENS = 2**31 - 1
MAX_LOGPROBS = 20
GREEDY_BELOW = 1e-4
"""a temperature this low is argmax in every case that float arithmetic can tell apart"""


def prompt(value: Any, param: str) -> str | tuple[int, ...]:
    """Text or token ids; several prompts in one request are not supported."""
    if type(value) is str and value:
        return value
    if type(value) is list and value and all(type(item) in (str, list) for item in value):
        raise RequestError(
            f"{param}: several prompts in one request are not supported",
            code="unsupported_parameter",
            param=param,
        )
    if type(value) is not list or not value:
        raise invalid(param, "a non-empty string or a non-empty list of token ids")
    return token_ids(value, param)


SHARED_READERS: dict[str, Reader] = {
    "model": text,
    "max_tokens": integer(1, MAX_TOKENS),
    "temperature": number(0.0, 2.0),
    "top_p": number(0.0, 1.0, above_low=True),
    "top_k": integer(-1, MAX_TOKENS),
    "seed": integer(-(2**63), 2**63 - 1),
    "stop": stop,
    "stop_token_ids": stop_token_ids,
    "min_tokens": integer(0, MAX_TOKENS),
    "ignore_eos": flag,
    "stream": flag,
    "stream_options": stream_options,
    "user": text,
}
READERS: dict[Endpoint, dict[str, Reader]] = {
    "chat": {
        "messages": read_messages,
        **SHARED_READERS,
        "max_completion_tokens": integer(1, MAX_TOKENS),
        "logprobs": flag,
        "top_logprobs": integer(0, MAX_LOGPROBS),
    },
    "text": {
        "prompt": prompt,
        **SHARED_READERS,
        "logprobs": integer(0, MAX_LOGPROBS),
    },
}
REQUIRED: dict[Endpoint, tuple[str, ...]] = {
    "chat": ("messages", "model"),
    "text": ("prompt", "model"),
}

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "min_p": (0,),
    "modalities": (["text"],),
    "n": (1,),
    "parallel_tool_calls": (False, True),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "skip_special_tokens": (True,),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "use_beam_search": (False,),
}
"""field -> values under which leaving it out would give the same answer; null always is"""
IGNORED = frozenset({"metadata"})
"""fields that are objects for the client's own book-keeping"""


@dataclass(frozen=True)
class ParsedRequest:
    """The fields of one request, checked one by one and against each other."""

    endpoint: Endpoint
    messages: tuple[Message, ...]
    """chat only"""
    prompt: str | tuple[int, ...]
    """text only"""
    model: str
    stream: bool
    include_usage: bool
    continuous_usage: bool
    max_tokens: int | None
    temperature: float
    top_p: float
    top_k: int
    seed: int
    """63 bits; drawn when the client gave none"""
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    min_tokens: int
    ignore_eos: bool
    logprobs: int
    """-1 none; 0 the chosen token's; k also the k most likely"""


def parse_request(body: Mapping[str, Any], endpoint: Endpoint) -> ParsedRequest:
    """The request in a JSON object; RequestError names the first bad field."""
    fields = _read_fields(body, endpoint)
    temperature = fields.get("temperature", 1.0)
    options = _stream_options(fields)
    return ParsedRequest(
        endpoint=endpoint,
        messages=fields.get("messages", ()),
        prompt=fields.get("prompt", ""),
        model=fields["model"],
        stream=fields.get("stream", False),
        include_usage=options.get("include_usage", False),
        continuous_usage=options.get("continuous_usage_stats", False),
        max_tokens=_max_tokens(fields),
        temperature=0.0 if temperature < GREEDY_BELOW else temperature,
        top_p=fields.get("top_p", 1.0),
        top_k=max(0, fields.get("top_k", 0)),
        seed=fields.get("seed", secrets.randbits(63)) & (2**63 - 1),
        stop=fields.get("stop", ()),
        stop_token_ids=fields.get("stop_token_ids", ()),
        min_tokens=_min_tokens(fields),
        ignore_eos=fields.get("ignore_eos", False),
        logprobs=_logprobs(fields, endpoint),
    )


def _read_fields(body: Mapping[str, Any], endpoint: Endpoint) -> dict[str, Any]:
    readers = READERS[endpoint]
    for name in REQUIRED[endpoint]:
        if name not in body:
            raise RequestError(f"{name}: missing", code="missing_parameter", param=name)
    fields: dict[str, Any] = {}
    for name, value in body.items():
        if name in readers:
            if value is not None or name in REQUIRED[endpoint]:
                fields[name] = readers[name](value, name)
        elif not _changes_nothing(name, value):
            raise unsupported(name)
    return fields


def _changes_nothing(name: str, value: Any) -> bool:
    if name in IGNORED:
        return value is None or type(value) is dict
    neutral = NEUTRAL.get(name)
    return neutral is not None and (value is None or any(same(value, item) for item in neutral))


def _stream_options(fields: Mapping[str, Any]) -> dict[str, bool]:
    options: dict[str, bool] = fields.get("stream_options", {})
    if "stream_options" in fields and not fields.get("stream", False):
        raise RequestError(
            "stream_options: only with stream: true", code="invalid_value", param="stream_options"
        )
    return options


def _max_tokens(fields: Mapping[str, Any]) -> int | None:
    old, new = fields.get("max_tokens"), fields.get("max_completion_tokens")
    if old is not None and new is not None and old != new:
        raise invalid("max_completion_tokens", "equal to max_tokens, or one of them left out")
    return new if old is None else old


def _min_tokens(fields: Mapping[str, Any]) -> int:
    least: int = fields.get("min_tokens", 0)
    most = _max_tokens(fields)
    if most is not None and least > most:
        raise invalid("min_tokens", f"at most max_tokens ({most})")
    return least


def _logprobs(fields: Mapping[str, Any], endpoint: Endpoint) -> int:
    if endpoint == "text":
        return int(fields.get("logprobs", -1))
    top = fields.get("top_logprobs")
    if not fields.get("logprobs", False):
        if top:
            raise invalid("top_logprobs", "given together with logprobs: true")
        return -1
    return top or 0


def check_model(name: str, served: str) -> None:
    """RequestError 404 unless `name` is the model served here."""
    if name != served:
        raise RequestError(
            f"model {shown(name)!r} is not served here",
            status=404,
            code="model_not_found",
            param="model",
            kind="not_found_error",
        )
