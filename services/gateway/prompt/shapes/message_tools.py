"""`tools` and `tool_choice` in Anthropic's shape."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from services.gateway.prompt.tools import (
    MAX_TOOLS,
    Mode,
    Tool,
    ToolChoice,
    checked_tools,
    described_tool,
)
from shared.errors import RequestError
from shared.fields.client_text import shown
from shared.fields.readers import flag, invalid, same, unsupported

NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
NAME_WORDS = "1 to 128 letters, digits, underscores and dashes"
MODES: dict[str, Mode] = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}
"""type of a choice -> whether calls are made"""
FIELDS = frozenset({"type", "name", "description", "input_schema", "strict"})
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "allowed_callers": (["direct"],),
    "defer_loading": (False,),
    "input_examples": ([],),
}
"""field of a tool -> values under which it changes nothing, besides null"""
HINTS = frozenset({"cache_control", "eager_input_streaming"})
"""fields whose value never matters: every prompt is cached, every argument streamed"""


@dataclass(frozen=True)
class MessageToolChoice:
    """`tool_choice`, and what stands in it of parallel calls."""

    choice: ToolChoice
    parallel: bool


def read_message_tools(value: Any, param: str) -> tuple[Tool, ...]:
    """The client's own tools; those that Anthropic runs or has trained a model on are refused."""
    if type(value) is not list or len(value) > MAX_TOOLS:
        raise invalid(param, f"a list of at most {MAX_TOOLS} tools")
    tools = tuple(_tool(item, f"{param}[{index}]") for index, item in enumerate(value))
    return checked_tools(tools, param, "name")


def read_message_tool_choice(value: Any, param: str) -> MessageToolChoice:
    """{"type": "auto" | "any" | "tool" | "none", "name", "disable_parallel_tool_use"}."""
    kind = value.get("type") if type(value) is dict else None
    if type(kind) is not str or kind not in MODES:
        raise invalid(param, "an object with a type: auto, any, tool or none")
    known = {"type", "disable_parallel_tool_use"}
    if kind == "tool" or value.get("name") is None:
        known.add("name")
    check_names(value, known, param)
    name = read_tool_name(value.get("name"), f"{param}.name") if kind == "tool" else ""
    lone = value.get("disable_parallel_tool_use")
    return MessageToolChoice(
        ToolChoice(MODES[kind], name, f"{param}.name"),
        parallel=lone is None or not flag(lone, f"{param}.disable_parallel_tool_use"),
    )


def read_tool_name(value: Any, param: str) -> str:
    if type(value) is not str or not NAME.fullmatch(value):
        raise invalid(param, NAME_WORDS)
    return value


def check_names(value: Mapping[str, Any], known: frozenset[str] | set[str], where: str) -> None:
    """RequestError names a member that nobody knows."""
    for name in value:
        if name not in known:
            param = f"{where}.{shown(name)}"
            raise RequestError(f"{param}: not supported", code="unsupported_parameter", param=param)


def _tool(value: Any, where: str) -> Tool:
    if type(value) is not dict:
        raise invalid(where, "an object")
    if value.get("type") not in (None, "custom"):
        raise RequestError(
            f"{where}.type: only tools of your own are supported, with an input_schema",
            code="unsupported_parameter",
            param=f"{where}.type",
        )
    check_names(value, FIELDS | NEUTRAL.keys() | HINTS, where)
    for name, neutral in NEUTRAL.items():
        given = value.get(name)
        if given is not None and not any(same(given, item) for item in neutral):
            raise unsupported(f"{where}.{name}", neutral)
    name = read_tool_name(value.get("name"), f"{where}.name")
    return described_tool(name, value, where, "input_schema")
