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

from services.gateway.fields.readers import (
    Reader,
    flag,
    integer,
    invalid,
    logit_bias,
    number,
    same,
    stop,
    stop_token_ids,
    stream_options,
    text,
    token_ids,
    unsupported,
)
from services.gateway.owner.generation import Endpoint
from services.gateway.prompt.messages import Message, read_messages
from services.gateway.prompt.response_format import response_format
from services.gateway.prompt.tools import ToolUse, read_tool_choice, read_tools, tool_use
from shared.errors import RequestError

MAX_TOKENS = 2**31 - 1
MAX_N = 8
MAX_PROMPTS = 128
MAX_CHOICES = 128
"""of one answer: prompts times n"""
MAX_LOGPROBS = 20
MIN_REPETITION_PENALTY = 0.01
"""a logit divided by less could leave the range of a float"""
MAX_REPETITION_PENALTY = 2.0
"""a logit is at most halved, or doubled where negative, for having been there before"""
GREEDY_BELOW = 1e-4
"""a temperature this low is argmax in every case that float arithmetic can tell apart"""


def prompts(value: Any, param: str) -> tuple[str | tuple[int, ...], ...]:
    """Text, token ids, or a list of either."""
    if type(value) is str and value:
        return (value,)
    if type(value) is not list or not value:
        raise invalid(param, "a non-empty string or a non-empty list of token ids")
    kinds = set(map(type, value))
    if kinds not in ({str}, {list}):
        return (token_ids(value, param),)
    if len(value) > MAX_PROMPTS:
        raise invalid(param, f"at most {MAX_PROMPTS} prompts")
    for item, name in zip(value, prompt_names(len(value)), strict=True):
        if not item:
            raise invalid(name, "a non-empty string or a non-empty list of token ids")
    return tuple(item if type(item) is str else token_ids(item, param) for item in value)


def prompt_names(num_prompts: int) -> list[str]:
    """What errors call each of the prompts."""
    return ["prompt"] if num_prompts == 1 else [f"prompt[{at}]" for at in range(num_prompts)]


SHARED_READERS: dict[str, Reader] = {
    "model": text,
    "max_tokens": integer(1, MAX_TOKENS),
    "n": integer(1, MAX_N),
    "temperature": number(0.0, 2.0),
    "top_p": number(0.0, 1.0, above_low=True),
    "top_k": integer(-1, MAX_TOKENS),
    "min_p": number(0.0, 1.0),
    "presence_penalty": number(-2.0, 2.0),
    "frequency_penalty": number(-2.0, 2.0),
    "repetition_penalty": number(MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY),
    "logit_bias": logit_bias,
    "seed": integer(-(2**63), 2**63 - 1),
    "stop": stop,
    "stop_token_ids": stop_token_ids,
    "response_format": response_format,
    "min_tokens": integer(0, MAX_TOKENS),
    "ignore_eos": flag,
    "stream": flag,
    "stream_options": stream_options,
    "tools": read_tools,
    "tool_choice": read_tool_choice,
    "parallel_tool_calls": flag,
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
        "prompt": prompts,
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
    "function_call": ("none", "auto"),
    "functions": ([],),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "modalities": (["text"],),
    "service_tier": ("auto", "default"),
    "skip_special_tokens": (True,),
    "store": (False,),
    "suffix": ("",),
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
    prompts: tuple[str | tuple[int, ...], ...]
    """text only"""
    num_choices: int
    """of each prompt"""
    model: str
    stream: bool
    include_usage: bool
    continuous_usage: bool
    max_tokens: int | None
    max_tokens_param: str
    """what the client calls it"""
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: tuple[tuple[int, float], ...]
    """(token id, what is added to its logit)"""
    seed: int
    """63 bits; drawn when the client gave none"""
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    min_tokens: int
    ignore_eos: bool
    logprobs: int
    """-1 none; 0 the chosen token's; k also the k most likely"""
    grammar: str
    """what response_format asks for; empty is any text"""
    tool_use: ToolUse
    """chat only"""


def parse_request(body: Mapping[str, Any], endpoint: Endpoint) -> ParsedRequest:
    """The request in a JSON object; RequestError names the first bad field."""
    fields = _read_fields(body, endpoint)
    temperature = fields.get("temperature", 1.0)
    options = _stream_options(fields)
    return ParsedRequest(
        endpoint=endpoint,
        messages=fields.get("messages", ()),
        prompts=fields.get("prompt", ()),
        num_choices=_num_choices(fields),
        model=fields["model"],
        stream=fields.get("stream", False),
        include_usage=options.get("include_usage", False),
        continuous_usage=options.get("continuous_usage_stats", False),
        max_tokens=_max_tokens(fields),
        max_tokens_param="max_tokens" if "max_tokens" in fields else "max_completion_tokens",
        temperature=0.0 if temperature < GREEDY_BELOW else temperature,
        top_p=fields.get("top_p", 1.0),
        top_k=max(0, fields.get("top_k", 0)),
        min_p=fields.get("min_p", 0.0),
        presence_penalty=fields.get("presence_penalty", 0.0),
        frequency_penalty=fields.get("frequency_penalty", 0.0),
        repetition_penalty=fields.get("repetition_penalty", 1.0),
        logit_bias=fields.get("logit_bias", ()),
        seed=fields.get("seed", secrets.randbits(63)) & (2**63 - 1),
        stop=fields.get("stop", ()),
        stop_token_ids=fields.get("stop_token_ids", ()),
        min_tokens=_min_tokens(fields),
        ignore_eos=fields.get("ignore_eos", False),
        logprobs=_logprobs(fields, endpoint),
        grammar=fields.get("response_format", ""),
        tool_use=_tool_use(fields, endpoint),
    )


def _read_fields(body: Mapping[str, Any], endpoint: Endpoint) -> dict[str, Any]:
    readers = READERS[endpoint]
    for name in REQUIRED[endpoint]:
        if name not in body:
            raise RequestError(f"{name}: is required", code="missing_parameter", param=name)
    fields: dict[str, Any] = {}
    for name, value in body.items():
        if name in readers:
            if value is not None or name in REQUIRED[endpoint]:
                fields[name] = readers[name](value, name)
        elif not _changes_nothing(name, value):
            raise unsupported(name, NEUTRAL.get(name, ()))
    return fields


def _changes_nothing(name: str, value: Any) -> bool:
    if name in IGNORED:
        return value is None or type(value) is dict
    neutral = NEUTRAL.get(name)
    return neutral is not None and (value is None or any(same(value, item) for item in neutral))


def _tool_use(fields: dict[str, Any], endpoint: Endpoint) -> ToolUse:
    if endpoint == "text" and fields.get("tools"):
        raise unsupported("tools")
    return tool_use(fields)


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


def _num_choices(fields: Mapping[str, Any]) -> int:
    num_choices: int = fields.get("n", 1)
    num_prompts = len(fields.get("prompt", ("messages",)))
    if num_choices * num_prompts > MAX_CHOICES:
        raise invalid("n", f"at most {MAX_CHOICES // num_prompts} with {num_prompts} prompts")
    return num_choices


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
            f"model: no such model here; use {served!r}",
            status=404,
            code="model_not_found",
            param="model",
            kind="not_found_error",
        )
