"""`tools` and `tool_choice` of /v1/responses: functions without an object around them."""

from typing import Any

from services.gateway.prompt.shapes.message_tools import NEUTRAL, check_names, read_tool_name
from services.gateway.prompt.tools import (
    MAX_TOOLS,
    MODES,
    TOOL_FIELDS,
    Tool,
    ToolChoice,
    checked_tools,
    described_tool,
)
from shared.errors import RequestError
from shared.fields.client_text import shown
from shared.fields.readers import invalid, same, unsupported


def read_response_tools(value: Any, param: str) -> tuple[Tool, ...]:
    """Functions; tools that OpenAI runs are refused."""
    if type(value) is not list or len(value) > MAX_TOOLS:
        raise invalid(param, f"a list of at most {MAX_TOOLS} tools")
    tools = tuple(_tool(item, f"{param}[{index}]") for index, item in enumerate(value))
    return checked_tools(tools, param, "name")


def read_response_tool_choice(value: Any, param: str) -> ToolChoice:
    """A mode, or {"type": "function", "name"}."""
    if type(value) is str and value in MODES:
        return ToolChoice(mode=MODES[value])
    if type(value) is not dict or value.get("type") != "function":
        raise invalid(param, 'none, auto, required, or {"type": "function", "name": ...}')
    check_names(value, {"type", "name"}, param)
    name = read_tool_name(value.get("name"), f"{param}.name")
    return ToolChoice("required", name, f"{param}.name")


def _tool(value: Any, where: str) -> Tool:
    if type(value) is not dict or type(value.get("type")) is not str:
        raise invalid(where, "an object with a type")
    if value["type"] != "function":
        raise RequestError(
            f"{where}.type: tools of type {shown(value['type'])!r} are not supported; "
            "offer functions of your own",
            code="unsupported_parameter",
            param=f"{where}.type",
        )
    for name, given in value.items():
        neutral = NEUTRAL.get(name, ())
        if name in TOOL_FIELDS or name == "type" or (name in NEUTRAL and given is None):
            continue
        if not any(same(given, item) for item in neutral):
            raise unsupported(f"{where}.{shown(name)}", neutral)
    name = read_tool_name(value.get("name"), f"{where}.name")
    return described_tool(name, value, where, "parameters")
