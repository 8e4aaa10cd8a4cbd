"""Ids of tool calls: made for answers, and made fit for templates that want their own form."""

import hashlib
import re
import string
from collections.abc import Sequence

from services.gateway.parts.families import FamilyName
from shared.text.messages import Message

NUM_CHARS = 24
NUM_MISTRAL_CHARS = 9
"""Mistral's chat templates refuse ids of any other form"""
MISTRAL_ID = re.compile(r"[a-zA-Z0-9]{9}")
_ALPHABET = string.ascii_letters + string.digits


def call_id(rid: str, index: int, family: FamilyName) -> str:
    """Id of an answer's call; the same however often it is asked for."""
    name = f"{rid}/{index}"
    if family == "mistral":
        return _short(name)
    return "call_" + hashlib.sha256(name.encode()).hexdigest()[:NUM_CHARS]


def with_template_ids(messages: Sequence[Message], family: FamilyName) -> Sequence[Message]:
    """Messages whose ids the family's templates accept: equal ids stay equal."""
    if family != "mistral":
        return messages
    return [_with_short_ids(message) for message in messages]


def _with_short_ids(message: Message) -> Message:
    changed = dict(message)
    if "tool_call_id" in message:
        changed["tool_call_id"] = _fitting(message["tool_call_id"])
    if "tool_calls" in message:
        changed["tool_calls"] = [
            {**call, "id": _fitting(call["id"])} for call in message["tool_calls"]
        ]
    return changed


def _fitting(name: str) -> str:
    return name if MISTRAL_ID.fullmatch(name) else _short(name)


def _short(name: str) -> str:
    digest = hashlib.sha256(name.encode()).digest()[:NUM_MISTRAL_CHARS]
    return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in digest)
