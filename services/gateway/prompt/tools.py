"""`tools`, `tool_choice` and `parallel_tool_calls` of a chat request."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from shared.errors import RequestError
from shared.fields.client_text import shown
from shared.fields.readers import flag, invalid, text
from shared.text.messages import NAME

MAX_TOOLS = 128
MAX_TOOLS_CHARS = 256 * 1024
"""of all tools together, as JSON; templates may indent them, which is slow"""
TOOL_FIELDS = {"name", "description", "parameters", "strict"}
Mode = Literal["none", "auto", "required"]
MODES: dict[str, Mode] = {"none": "none", "auto": "auto", "required": "required"}
NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}


@dataclass(frozen=True)
class Tool:
    """A function that the model may call."""

    name: str
    description: str | None
    parameters: dict[str, Any]
    """JSON schema of an object"""
    strict: bool
    """arguments must match the schema even where the model is free not to call"""

    @property
    def shown(self) -> dict[str, Any]:
        """As chat templates get it."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        return {"type": "function", "function": {**function, "parameters": self.parameters}}


@dataclass(frozen=True)
class ToolChoice:
    """Whether calls are made: by nobody's wish but the model's, not at all, or certainly."""

    mode: Mode = "auto"
    name: str = ""
    """with `required`: the one function to call"""
    param: str = "tool_choice.function.name"
    """what the client calls the name"""


@dataclass(frozen=True)
class ToolUse:
    """What a request says about tools."""

    tools: tuple[Tool, ...] = ()
    choice: ToolChoice = ToolChoice()
    parallel: bool = True
    """more than one call in an answer"""

    @property
    def offered(self) -> tuple[Tool, ...]:
        """The tools that the model gets to see."""
        return () if self.choice.mode == "none" else self.tools

    @property
    def callable(self) -> tuple[Tool, ...]:
        """The tools that it may call."""
        named = self.choice.name
        return tuple(tool for tool in self.offered if not named or tool.name == named)


def read_tools(value: Any, param: str) -> tuple[Tool, ...]:
    """Function tools with names of their own."""
    if type(value) is not list or len(value) > MAX_TOOLS:
        raise invalid(param, f"a list of at most {MAX_TOOLS} tools")
    tools = tuple(_tool(item, f"{param}[{index}]") for index, item in enumerate(value))
    return checked_tools(tools, param, "function.name")


def described_tool(name: str, members: Mapping[str, Any], where: str, schema: str) -> Tool:
    """A tool of that name as its other members have it. `schema`: the one of its parameters."""
    description, strict = members.get("description"), members.get("strict")
    return Tool(
        name=name,
        description=None if description is None else text(description, f"{where}.description"),
        parameters=read_parameters(members.get(schema), f"{where}.{schema}"),
        strict=False if strict is None else flag(strict, f"{where}.strict"),
    )


def checked_tools(tools: tuple[Tool, ...], param: str, name: str) -> tuple[Tool, ...]:
    """The tools; RequestError if two have one name, or all together are too long. `name`: what
    the client calls a tool's name."""
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.name in seen:
            raise invalid(f"{param}[{index}].{name}", "different from the other tools'")
        seen.add(tool.name)
    if len(json.dumps([tool.shown for tool in tools])) > MAX_TOOLS_CHARS:
        raise RequestError(
            f"{param}: more than {MAX_TOOLS_CHARS} characters",
            code="too_many_fields",
            param=param,
        )
    return tools


def read_tool_choice(value: Any, param: str) -> ToolChoice:
    """A mode, or {"type": "function", "function": {"name": ...}}."""
    if type(value) is str and value in MODES:
        return ToolChoice(mode=MODES[value])
    if type(value) is not dict or value.get("type") != "function":
        raise invalid(param, 'none, auto, required, or {"type": "function", "function": {...}}')
    _check_names(value, {"type", "function"}, param)
    where = f"{param}.function"
    return ToolChoice("required", _name(_function(value.get("function"), where, {"name"}), where))


def tool_use(fields: Mapping[str, Any]) -> ToolUse:
    """The three fields together; each as its reader made it, or absent."""
    use = ToolUse(
        tools=fields.get("tools", ()),
        choice=fields.get("tool_choice", ToolChoice()),
        parallel=fields.get("parallel_tool_calls", True),
    )
    if use.choice.mode == "required" and not use.callable:
        needed = "a function of tools" if use.choice.name else "none or auto without tools"
        param = use.choice.param if use.choice.name else "tool_choice"
        raise invalid(param, needed)
    return use


def _tool(value: Any, where: str) -> Tool:
    if type(value) is not dict:
        raise invalid(where, "an object")
    if value.get("type") != "function":
        raise invalid(f"{where}.type", '"function"')
    _check_names(value, {"type", "function"}, where)
    where = f"{where}.function"
    function = _function(value.get("function"), where, TOOL_FIELDS)
    return described_tool(_name(function, where), function, where, "parameters")


def _function(value: Any, where: str, known: set[str]) -> dict[str, Any]:
    if type(value) is not dict:
        raise invalid(where, "an object")
    _check_names(value, known, where)
    return value


def _name(function: dict[str, Any], where: str) -> str:
    name = function.get("name")
    if type(name) is not str or not NAME.fullmatch(name):
        raise invalid(f"{where}.name", "1 to 64 letters, digits, underscores and dashes")
    return name


def read_parameters(value: Any, where: str) -> dict[str, Any]:
    if value is None:
        return NO_PARAMETERS
    if type(value) is not dict:
        raise invalid(where, "a JSON schema, an object")
    if value.get("type", "object") != "object":
        raise invalid(f"{where}.type", '"object"')
    return value


def _check_names(value: dict[str, Any], known: set[str], where: str) -> None:
    for name in value:
        if name not in known:
            param = f"{where}.{shown(name)}"
            raise RequestError(f"{param}: not supported", code="unsupported_parameter", param=param)
