"""Request bodies of the HTTP tests, and reading what comes back."""

import json
from typing import Any

from tests.support.models.text_models import MODEL_NAME

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


def chat_body(content: Any = "hello", **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    return {"model": MODEL_NAME, "messages": messages, **fields}


def text_body(prompt: Any = "hello", **fields: Any) -> dict[str, Any]:
    return {"model": MODEL_NAME, "prompt": prompt, **fields}


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
