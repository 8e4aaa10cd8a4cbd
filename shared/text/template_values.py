"""What a client may tell the chat template: `chat_template_kwargs` and `reasoning_effort`.

Templates know thinking by different names; each sees those it looks at.
"""

import re
from collections.abc import Mapping
from typing import Any

from jinja2.defaults import DEFAULT_NAMESPACE

from shared.errors import RequestError
from shared.fields.client_text import shown
from shared.fields.readers import invalid

MAX_VALUES = 32
MAX_DEPTH = 4
"""levels of lists and objects in one value"""
MAX_NUMBER = 2**31 - 1
"""a template may repeat or count by a number"""
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
THINKING_NAMES = ("enable_thinking", "thinking")
"""of Qwen, GLM and SmolLM; of DeepSeek and Granite"""
EFFORT_NAME = "reasoning_effort"
OWN_NAMES = frozenset(
    {
        *DEFAULT_NAMESPACE,
        *("messages", "tools", "documents", "add_generation_prompt", "baton_budget"),
        *("raise_exception", "strftime_now", "loop", "self", "caller", "varargs", "kwargs"),
    }
)
"""what the template gets from us; names of special tokens, which end in _token, are ours too"""

_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,63}")

Values = dict[str, Any]


def read_template_kwargs(value: Any, param: str) -> Values:
    """Values of JSON by the names a template knows them by, none of which is ours."""
    if type(value) is not dict or len(value) > MAX_VALUES:
        raise invalid(param, f"an object of at most {MAX_VALUES} values")
    for name, item in value.items():
        where = f"{param}.{shown(name)}"
        if name in OWN_NAMES or name.endswith("_token"):
            raise RequestError(
                f"{where}: the server sets this itself; leave it out",
                code="unsupported_parameter",
                param=where,
            )
        if not _NAME.fullmatch(name):
            raise invalid(where, "named by letters, digits and underscores")
        _check_value(item, where, MAX_DEPTH)
    return dict(value)


def read_effort(value: Any, param: str) -> str:
    if type(value) is not str or value not in EFFORTS:
        raise invalid(param, f"one of {', '.join(EFFORTS)}")
    return value


def template_values(
    thinking: str, effort: str | None, kwargs: Mapping[str, Any], *, thinks: bool | None = None
) -> Values:
    """What the template sees. The client's own values come before whether it wants the model to
    think (`thinks`), that before what its `effort` means, and that before the server's setting
    `thinking`."""
    values: Values = {}
    if thinking == "off":
        values |= dict.fromkeys(THINKING_NAMES, False)
    if effort is not None:
        values |= dict.fromkeys(THINKING_NAMES, effort != "none")
        values |= {} if effort == "none" else {EFFORT_NAME: effort}
    if thinks is not None:
        values |= dict.fromkeys(THINKING_NAMES, thinks)
    return {**values, **kwargs}


def shows_thinking(names: frozenset[str]) -> bool:
    """Whether a template that looks at these names can be told to think."""
    return not names.isdisjoint(THINKING_NAMES)


def shows_effort(names: frozenset[str]) -> bool:
    """The same for an effort."""
    return EFFORT_NAME in names or shows_thinking(names)


def _check_value(value: Any, where: str, depth: int) -> None:
    if isinstance(value, dict | list):
        if depth == 0:
            raise invalid(where, f"at most {MAX_DEPTH} levels deep")
        for item in value.values() if isinstance(value, dict) else value:
            _check_value(item, where, depth - 1)
    elif type(value) in (int, float) and abs(value) > MAX_NUMBER:
        raise invalid(where, f"made of numbers up to {MAX_NUMBER}")
