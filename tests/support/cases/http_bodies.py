"""Request bodies of the HTTP tests, and reading what comes back."""

import json
from typing import Any

from tests.support.models.text_models import MODEL_NAME

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
RESPONSES = "/v1/responses"


def chat_body(content: Any = "hello", **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    return {"model": MODEL_NAME, "messages": messages, **fields}


def text_body(prompt: Any = "hello", **fields: Any) -> dict[str, Any]:
    return {"model": MODEL_NAME, "prompt": prompt, **fields}


def message_body(content: Any = "hello", **fields: Any) -> dict[str, Any]:
    """In Anthropic's shape."""
    messages = [{"role": "user", "content": content}]
    return {"model": MODEL_NAME, "max_tokens": 256, "messages": messages, **fields}


def response_body(content: Any = "hello", **fields: Any) -> dict[str, Any]:
    """In the shape of OpenAI's responses."""
    return {"model": MODEL_NAME, "input": content, **fields}


def events_of(body: str) -> list[Any]:
    """The JSON of each event; the string "[DONE]" stays one."""
    events: list[Any] = []
    for line in body.split("\n\n"):
        if line.startswith("data: "):
            content = line.removeprefix("data: ")
            events.append(content if content == "[DONE]" else json.loads(content))
    return events


def text_of(events: list[Any]) -> str:
    """The text of a stream, chat or completions."""
    choices = [c for e in events if isinstance(e, dict) for c in e.get("choices", [])]
    return "".join(c.get("text") or c.get("delta", {}).get("content") or "" for c in choices)


def named_events_of(body: str) -> list[dict[str, Any]]:
    """The events of a stream that names them: each says its name twice."""
    events = []
    for part in body.split("\n\n"):
        if part and not part.startswith(":"):
            name, _, content = part.removeprefix("event: ").partition("\ndata: ")
            events.append(json.loads(content))
            assert events[-1]["type"] == name
    return events
