"""`input` of /v1/responses, as the messages of a chat.

Calls that follow each other, or an answer, are one message of the model's, as chats have it.
Items of reasoning are left out: what they hold belongs to the server that made them.
"""

from collections.abc import Sequence
from typing import Any

from services.gateway.prompt.shapes.message_tools import read_tool_name
from services.gateway.prompt.shapes.turns import Turns
from shared.errors import RequestError
from shared.fields.client_text import shown
from shared.fields.readers import invalid, text
from shared.text.messages import (
    MAX_CALLS,
    MAX_MESSAGES,
    ROLES,
    Message,
    read_arguments,
    read_call_id,
)

TEXTS = ("input_text", "output_text")
"""types of parts that hold text"""
REFERENCE = "item_reference"


def read_input(value: Any, param: str) -> Turns:
    """A string is what the user says; a list has messages, calls and what came of them."""
    if type(value) is str and value:
        return Turns.of([({"role": "user", "content": value}, param)], param)
    if type(value) is not list or not value:
        raise invalid(param, "a non-empty string or a list of at least one item")
    if len(value) > MAX_MESSAGES:
        raise RequestError(
            f"{param}: more than {MAX_MESSAGES} items", code="too_many_messages", param=param
        )
    turns: list[tuple[Message, str]] = []
    for index, item in enumerate(value):
        _add(turns, item, f"{param}[{index}]")
    if not turns:
        raise invalid(param, "a list with a message, not of reasoning alone")
    return Turns.of(turns, param)


def _add(turns: list[tuple[Message, str]], item: Any, where: str) -> None:
    """The item as a message of its own, or as part of the last one."""
    if type(item) is not dict:
        raise invalid(where, "an object")
    kind = item.get("type", "message")
    match kind:
        case "message":
            turns.append((_message(item, where), where))
        case "function_call":
            call = _call(item, where)
            last: Message = turns[-1][0] if turns else {"role": ""}
            if last["role"] != "assistant":
                last = {"role": "assistant", "content": ""}
                turns.append((last, where))
            calls = last.setdefault("tool_calls", [])
            calls.append(call)
            if len(calls) > MAX_CALLS:
                raise invalid(where, f"one of at most {MAX_CALLS} calls")
        case "function_call_output":
            call_id = read_call_id(item.get("call_id"), f"{where}.call_id")
            content = _content(item.get("output"), f"{where}.output")
            turns.append(({"role": "tool", "content": content, "tool_call_id": call_id}, where))
        case "reasoning":
            """Left out."""
        case _:
            raise _unsupported(kind, where)


def _message(item: dict[str, Any], where: str) -> Message:
    role = item.get("role")
    if type(role) is not str or role not in ROLES or role == "tool":
        names = ", ".join(name for name in ROLES if name != "tool")
        raise invalid(f"{where}.role", f"one of {names}")
    return {"role": ROLES[role], "content": _content(item.get("content"), f"{where}.content")}


def _call(item: dict[str, Any], where: str) -> dict[str, Any]:
    call_id = read_call_id(item.get("call_id"), f"{where}.call_id")
    name = read_tool_name(item.get("name"), f"{where}.name")
    arguments = read_arguments(item.get("arguments"), f"{where}.arguments")
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _content(value: Any, where: str) -> str:
    """A string, or parts of text, joined as they are."""
    if type(value) is str:
        return value
    if type(value) is not list:
        raise invalid(where, "a string or a list of parts")
    return _joined(value, where)


def _joined(parts: Sequence[Any], where: str) -> str:
    said = []
    for index, part in enumerate(parts):
        place = f"{where}[{index}]"
        if type(part) is not dict or type(part.get("type")) is not str:
            raise invalid(place, "an object with a type")
        if part["type"] not in TEXTS:
            raise RequestError(
                f"{place}: parts of type {shown(part['type'])!r} are not supported; send text",
                code="unsupported_content",
                param=place,
            )
        said.append(text(part.get("text"), f"{place}.text"))
    return "".join(said)


def _unsupported(kind: Any, where: str) -> RequestError:
    cure = "send messages, function calls and their outputs"
    if kind == REFERENCE:
        cure = "nothing is stored here, so send the item itself"
    return RequestError(
        f"{where}: items of type {shown(str(kind))!r} are not supported; {cure}",
        code="unsupported_content",
        param=where,
    )
