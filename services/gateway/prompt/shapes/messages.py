"""/v1/messages: a body in Anthropic's shape, read as the chat request that it means."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from services.gateway.prompt.field_tables import READERS, SHARED_READERS, FieldTable
from services.gateway.prompt.request_fields import (
    ClientNames,
    ParsedRequest,
    parsed_request,
    read_fields,
)
from services.gateway.prompt.shapes.message_blocks import read_system, read_turns
from services.gateway.prompt.shapes.message_tools import (
    MessageToolChoice,
    read_message_tool_choice,
    read_message_tools,
)
from services.gateway.prompt.shapes.turns import Turns
from shared.errors import RequestError
from shared.fields.client_text import shown
from shared.fields.readers import Reader, integer, invalid, stop
from shared.grammar import source
from shared.text.sampling_fields import MAX_TOKENS
from shared.text.template_values import read_effort

GRAMMAR = "output_config.format"
EFFORT = "output_config.effort"
THINKING = {"enabled": True, "adaptive": True, "disabled": False}
"""type of `thinking` -> whether the model is to think first"""
KEEP_ALL = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}


@dataclass(frozen=True)
class Thinking:
    """`thinking`."""

    wanted: bool
    ignored: tuple[str, ...]
    """its members without effect"""


@dataclass(frozen=True)
class OutputConfig:
    """`output_config`."""

    effort: str | None
    grammar: str


def read_stop_sequences(value: Any, param: str) -> tuple[str, ...]:
    if type(value) is not list:
        raise invalid(param, "a list of strings")
    sequences: tuple[str, ...] = stop(value, param)
    return sequences


def read_thinking(value: Any, param: str) -> Thinking:
    """{"type": "enabled" | "adaptive" | "disabled"}."""
    kind = value.get("type") if type(value) is dict else None
    if type(kind) is not str or kind not in THINKING:
        raise invalid(param, "an object with a type: enabled, adaptive or disabled")
    others = [name for name, item in value.items() if name != "type" and item is not None]
    return Thinking(THINKING[kind], tuple(f"{param}.{shown(name)}" for name in others))


def read_output_config(value: Any, param: str) -> OutputConfig:
    """{"effort", "format": {"type": "json_schema", "schema"}}."""
    if type(value) is not dict:
        raise invalid(param, "an object")
    for name, item in value.items():
        if name not in ("effort", "format") and item is not None:
            where = f"{param}.{shown(name)}"
            raise RequestError(f"{where}: not supported", code="unsupported_parameter", param=where)
    effort, form = value.get("effort"), value.get("format")
    return OutputConfig(
        None if effort is None else read_effort(effort, EFFORT),
        "" if form is None else _grammar(form),
    )


MESSAGES_READERS: dict[str, Reader] = {
    **{name: SHARED_READERS[name] for name in ("model", "temperature", "top_p", "stream")},
    "messages": read_turns,
    "system": read_system,
    "max_tokens": integer(1, MAX_TOKENS),
    "top_k": integer(0, MAX_TOKENS),
    "stop_sequences": read_stop_sequences,
    "tools": read_message_tools,
    "tool_choice": read_message_tool_choice,
    "thinking": read_thinking,
    "output_config": read_output_config,
}
MESSAGES_TABLE = FieldTable(
    readers=MESSAGES_READERS,
    required=("max_tokens", "messages", "model"),
    neutral={
        "container": (),
        "context_management": ({"edits": []}, KEEP_ALL),
        "diagnostics": (),
        "inference_geo": (),
        "mcp_servers": ([],),
        "output_format": (),
        "service_tier": ("auto", "standard_only"),
        "speed": ("standard",),
    },
    ignored={"cache_control": dict, "metadata": dict},
    elsewhere=frozenset(READERS["chat"]) - MESSAGES_READERS.keys(),
)
COUNTED_TABLE = replace(MESSAGES_TABLE, required=("messages", "model"))
"""of /v1/messages/count_tokens"""


def parse_messages(body: Mapping[str, Any], *, refuse_unknown: bool) -> ParsedRequest:
    """The request in a body of /v1/messages; RequestError names every bad field."""
    return _parsed(*read_fields(body, MESSAGES_TABLE, refuse_unknown))


def parse_counted(body: Mapping[str, Any], *, refuse_unknown: bool) -> ParsedRequest:
    """The same of /v1/messages/count_tokens."""
    return _parsed(*read_fields(body, COUNTED_TABLE, refuse_unknown))


def _parsed(given: Mapping[str, Any], ignored: tuple[str, ...]) -> ParsedRequest:
    fields = {name: given[name] for name in _SAME if name in given}
    said: Turns = given["messages"]
    turns = said.after_system(given.get("system", ""), "system")
    fields["messages"] = turns.messages
    if "stop_sequences" in given:
        fields["stop"] = given["stop_sequences"]
    if "tool_choice" in given:
        told: MessageToolChoice = given["tool_choice"]
        fields |= {"tool_choice": told.choice, "parallel_tool_calls": told.parallel}
    if "thinking" in given:
        thinking: Thinking = given["thinking"]
        fields["thinks"] = thinking.wanted
        ignored += thinking.ignored
    if "output_config" in given:
        config: OutputConfig = given["output_config"]
        fields |= {"reasoning_effort": config.effort, GRAMMAR: config.grammar}
    names = ClientNames(grammar=GRAMMAR, effort=EFFORT, places=turns.places)
    return parsed_request(fields, "chat", names, ignored)


def _grammar(form: Any) -> str:
    """What a format asks for."""
    if type(form) is not dict or form.get("type") != "json_schema":
        raise invalid(GRAMMAR, "an object with type json_schema and a schema")
    if type(form.get("schema")) is not dict:
        raise invalid(f"{GRAMMAR}.schema", "a JSON Schema object")
    return source.json_schema(form["schema"])


_SAME = ("model", "max_tokens", "temperature", "top_p", "top_k", "stream", "tools")
"""fields that a chat has under the same name"""
