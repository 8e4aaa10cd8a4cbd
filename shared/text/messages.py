"""The `messages` of a chat request: roles, text, tool calls and what came of them."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from shared.errors import RequestError
from shared.fields.client_text import shown
from shared.fields.json_body import load_object
from shared.fields.readers import invalid

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""of a function"""
MAX_MESSAGES = 1024
MAX_CALLS = 128
MAX_ID_CHARS = 256
ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
"""role of the API -> role the template sees; developer is OpenAI's newer word for system"""
ROLE_FIELDS = {"assistant": ("reasoning_content", "tool_calls"), "tool": ("tool_call_id",)}
"""fields beyond role, content and name"""
CONTENT_FIELDS = frozenset(
    {"audio", "function_call", "images", "reasoning_content", "refusal", "tool_calls"}
)
"""message fields that are part of what was said; where they are not in use they must be null or
empty. Any other field is a client's own, or an answer's that comes back, and is left out"""

Message = dict[str, Any]


def read_messages(value: Any, param: str) -> tuple[Message, ...]:
    """Messages as the template gets them: role, content, and name, tool_calls, tool_call_id and
    reasoning_content if given."""
    if type(value) is not list or not value:
        raise invalid(param, "a list of at least one message")
    if len(value) > MAX_MESSAGES:
        raise RequestError(
            f"{param}: more than {MAX_MESSAGES} messages", code="too_many_messages", param=param
        )
    return tuple(_message(item, f"{param}[{index}]") for index, item in enumerate(value))


def check_usable(
    messages: Sequence[Message],
    param: str,
    places: Sequence[str] = (),
    *,
    tools: bool,
    reasoning: bool,
) -> None:
    """RequestError unless the model's template can show what the messages hold. `places`: what
    the client calls each of them, where it sent no chat."""
    for index, message in enumerate(messages):
        for field, subject in _unusable(message, tools=tools, reasoning=reasoning):
            raise _not_shown(places[index] if places else f"{param}[{index}].{field}", subject)


def _unusable(message: Message, *, tools: bool, reasoning: bool) -> Iterator[tuple[str, str]]:
    """Its fields that the template cannot show, and what they are about."""
    if not tools and message["role"] == "tool":
        yield "role", "tools"
    if not tools and "tool_calls" in message:
        yield "tool_calls", "tools"
    if not reasoning and "reasoning_content" in message:
        yield "reasoning_content", "reasoning"


def _not_shown(param: str, subject: str) -> RequestError:
    return RequestError(
        f"{param}: the model's chat template knows no {subject}",
        code="unsupported_parameter",
        param=param,
    )


def _message(value: Any, where: str) -> Message:
    if type(value) is not dict:
        raise invalid(where, "an object")
    role = value.get("role")
    known = ROLE_FIELDS.get(role, ()) if type(role) is str else ()
    for name, item in value.items():
        if name not in CONTENT_FIELDS or name in known or item in (None, [], ""):
            continue
        param = f"{where}.{shown(name)}"
        raise RequestError(f"{param}: not supported", code="unsupported_parameter", param=param)
    if type(role) is not str or role not in ROLES:
        raise invalid(f"{where}.role", f"one of {', '.join(ROLES)}")
    calls = _calls(value.get("tool_calls"), f"{where}.tool_calls")
    content = value.get("content")
    message: Message = {
        "role": ROLES[role],
        "content": "" if content is None and role == "assistant" else _content(content, where),
    }
    if value.get("name") is not None:
        message["name"] = _name(value["name"], f"{where}.name")
    if calls:
        message["tool_calls"] = calls
    if role == "tool":
        message["tool_call_id"] = read_call_id(value.get("tool_call_id"), f"{where}.tool_call_id")
    if reasoning := _reasoning(value.get("reasoning_content"), where):
        message["reasoning_content"] = reasoning
    return message


def _content(value: Any, where: str) -> str:
    where = f"{where}.content"
    if type(value) is str:
        return value
    if type(value) is not list or not value:
        raise invalid(where, "a string or a list of text parts")
    return "".join(_part(part, f"{where}[{index}]") for index, part in enumerate(value))


def _part(part: Any, where: str) -> str:
    if type(part) is not dict or type(part.get("type")) is not str:
        raise invalid(where, "an object with a type")
    if part["type"] != "text":
        raise RequestError(
            f"{where}: only text parts are supported", code="unsupported_content", param=where
        )
    if type(part.get("text")) is not str:
        raise invalid(f"{where}.text", "a string")
    return str(part["text"])


def _calls(value: Any, where: str) -> list[dict[str, Any]]:
    if value is None or value == "":
        return []
    if type(value) is not list or len(value) > MAX_CALLS:
        raise invalid(where, f"a list of at most {MAX_CALLS} tool calls")
    return [_call(item, f"{where}[{index}]") for index, item in enumerate(value)]


def _call(value: Any, where: str) -> dict[str, Any]:
    """One call; what clients keep with it, such as its index in a stream, is left out."""
    if type(value) is not dict:
        raise invalid(where, "an object")
    if value.get("type", "function") != "function":
        raise invalid(f"{where}.type", '"function"')
    call_id = read_call_id(value.get("id"), f"{where}.id")
    function, where = value.get("function"), f"{where}.function"
    if type(function) is not dict:
        raise invalid(where, "an object")
    name = function.get("name")
    if type(name) is not str or not NAME.fullmatch(name):
        raise invalid(f"{where}.name", "1 to 64 letters, digits, underscores and dashes")
    arguments = read_arguments(function.get("arguments"), f"{where}.arguments")
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def read_arguments(value: Any, where: str) -> Any:
    """The object that templates want; the text itself where a model wrote none."""
    if type(value) is not str:
        raise invalid(where, "a string of JSON")
    if not value.strip():
        return {}
    try:
        return load_object(value.encode("utf-8"))
    except RequestError:
        return value


def read_call_id(value: Any, where: str) -> str:
    if type(value) is not str or not 1 <= len(value) <= MAX_ID_CHARS:
        raise invalid(where, f"a string of 1 to {MAX_ID_CHARS} characters")
    return value


def _reasoning(value: Any, where: str) -> str:
    if value is None or value == []:
        return ""
    if type(value) is not str:
        raise invalid(f"{where}.reasoning_content", "a string")
    return value


def _name(value: Any, where: str) -> str:
    if type(value) is not str or not 1 <= len(value) <= 64:
        raise invalid(where, "a string of 1 to 64 characters")
    return value
