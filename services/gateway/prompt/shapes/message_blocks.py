"""`messages` and `system` in Anthropic's shape, as the messages of a chat.

A block that answers a tool call becomes a message of its own, as chats have it; texts of one
message are joined as they are. Members that clients keep with a block, such as `cache_control`
and `citations`, are left out.
"""

from collections.abc import Iterator
from typing import Any

from services.gateway.prompt.shapes.message_tools import read_tool_name
from services.gateway.prompt.shapes.turns import Turns
from shared.errors import RequestError
from shared.fields.client_text import shown
from shared.fields.readers import invalid, text
from shared.text.messages import MAX_CALLS, Message, read_call_id

ROLES = ("user", "assistant", "system")
Block = tuple[dict[str, Any], str]
"""and what the client calls it"""


def read_turns(value: Any, param: str) -> Turns:
    """A message becomes one of the chat's, or several; the last is not the model's own."""
    if type(value) is not list or not value:
        raise invalid(param, "a list of at least one message")
    turns = [
        (message, f"{param}[{index}]")
        for index, item in enumerate(value)
        for message in _messages(item, f"{param}[{index}]")
    ]
    if value[-1]["role"] == "assistant":
        raise RequestError(
            f"{param}: the last one must be the user's; an answer that the client began is not "
            "continued",
            code="unsupported_parameter",
            param=param,
        )
    return Turns.of(turns, param)


def read_system(value: Any, param: str) -> str:
    """A string, or a list of blocks of text."""
    return value if type(value) is str else _texts(_blocks(value, param))


def _messages(value: Any, where: str) -> Iterator[Message]:
    if type(value) is not dict:
        raise invalid(where, "an object")
    role, content = value.get("role"), value.get("content")
    if type(role) is not str or role not in ROLES:
        raise invalid(f"{where}.role", f"one of {', '.join(ROLES)}")
    if type(content) is str:
        yield {"role": role, "content": content}
        return
    if role == "assistant" and content == []:
        yield {"role": role, "content": ""}  # an answer without text, which comes back
        return
    blocks = _blocks(content, f"{where}.content")
    if role == "assistant":
        yield _assistant(blocks)
    elif role == "user":
        yield from _user(blocks)
    else:
        yield {"role": role, "content": _texts(blocks)}


def _blocks(value: Any, where: str) -> list[Block]:
    if type(value) is not list or not value:
        raise invalid(where, "a string or a list of at least one block")
    blocks = [(block, f"{where}[{index}]") for index, block in enumerate(value)]
    for block, place in blocks:
        if type(block) is not dict or type(block.get("type")) is not str:
            raise invalid(place, "an object with a type")
    return blocks


def _user(blocks: list[Block]) -> Iterator[Message]:
    """In the order of the blocks."""
    said: list[str] = []
    for block, place in blocks:
        if block["type"] != "tool_result":
            said.append(_text(block, place))
            continue
        if said:
            yield {"role": "user", "content": "".join(said)}
            said = []
        yield {
            "role": "tool",
            "content": _result(block.get("content"), f"{place}.content"),
            "tool_call_id": read_call_id(block.get("tool_use_id"), f"{place}.tool_use_id"),
        }
    if said:
        yield {"role": "user", "content": "".join(said)}


def _assistant(blocks: list[Block]) -> Message:
    said, thought = [], []
    calls: list[dict[str, Any]] = []
    for block, place in blocks:
        match block["type"]:
            case "thinking":
                thought.append(text(block.get("thinking"), f"{place}.thinking"))
            case "redacted_thinking":
                """Another server's, which nobody else can read."""
            case "tool_use" if len(calls) < MAX_CALLS:
                calls.append(_call(block, place))
            case "tool_use":
                raise invalid(place, f"one of at most {MAX_CALLS} calls")
            case _:
                said.append(_text(block, place))
    message: Message = {"role": "assistant", "content": "".join(said)}
    if calls:
        message["tool_calls"] = calls
    if reasoning := "".join(thought):
        message["reasoning_content"] = reasoning
    return message


def _call(block: dict[str, Any], place: str) -> dict[str, Any]:
    arguments = block.get("input")
    if type(arguments) is not dict:
        raise invalid(f"{place}.input", "an object")
    name = read_tool_name(block.get("name"), f"{place}.name")
    call_id = read_call_id(block.get("id"), f"{place}.id")
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _result(value: Any, where: str) -> str:
    """Nothing, a string, or blocks of text."""
    if value is None or value == []:
        return ""
    return value if type(value) is str else _texts(_blocks(value, where))


def _texts(blocks: list[Block]) -> str:
    return "".join(_text(block, place) for block, place in blocks)


def _text(block: dict[str, Any], place: str) -> str:
    if block["type"] != "text":
        raise RequestError(
            f"{place}: blocks of type {shown(block['type'])!r} are not supported here; send text",
            code="unsupported_content",
            param=place,
        )
    return text(block.get("text"), f"{place}.text")
