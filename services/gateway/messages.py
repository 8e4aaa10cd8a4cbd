"""The `messages` of a chat request: roles and text, nothing else."""

from typing import Any

from services.gateway.client_text import shown
from services.gateway.field_readers import invalid
from shared.errors import RequestError

MAX_MESSAGES = 1024
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
"""role of the API -> role the template sees; developer is OpenAI's newer word for system"""
EMPTY_FIELDS = frozenset(
    {"annotations", "audio", "function_call", "reasoning_content", "refusal", "tool_calls"}
)
"""message fields that clients echo; accepted only when null or empty"""

Message = dict[str, str]


def read_messages(value: Any, param: str) -> tuple[Message, ...]:
    """Messages as the template gets them: role, content, and name if given."""
    if type(value) is not list or not value:
        raise invalid(param, "a list of at least one message")
    if len(value) > MAX_MESSAGES:
        raise RequestError(
            f"{param}: more than {MAX_MESSAGES} messages", code="too_many_messages", param=param
        )
    return tuple(_message(item, f"{param}[{index}]") for index, item in enumerate(value))


def _message(value: Any, where: str) -> Message:
    if type(value) is not dict:
        raise invalid(where, "an object")
    for name, item in value.items():
        if name in ("role", "content", "name") or (name in EMPTY_FIELDS and item in (None, [], "")):
            continue
        param = f"{where}.{shown(name)}"
        raise RequestError(f"{param}: not supported", code="unsupported_parameter", param=param)
    role = value.get("role")
    if type(role) is not str or role not in ROLES:
        raise invalid(f"{where}.role", f"one of {', '.join(ROLES)}")
    message = {"role": ROLES[role], "content": _content(value.get("content"), where)}
    if value.get("name") is not None:
        message["name"] = _name(value["name"], f"{where}.name")
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
    if part["type"] != "text" or set(part) != {"type", "text"}:
        raise RequestError(
            f"{where}: only text parts are supported", code="unsupported_content", param=where
        )
    if type(part["text"]) is not str:
        raise invalid(f"{where}.text", "a string")
    return str(part["text"])


def _name(value: Any, where: str) -> str:
    if type(value) is not str or not 1 <= len(value) <= 64:
        raise invalid(where, "a string of 1 to 64 characters")
    return value
