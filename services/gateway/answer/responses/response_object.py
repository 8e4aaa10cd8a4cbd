"""The `response` object: what both the whole answer and the events of a stream say of it."""

from typing import Any, Literal

from services.gateway.answer.answer import Answer
from services.gateway.answer.responses.output import ResponseOutput

ID_PREFIX = "resp_"
Status = Literal["in_progress", "completed", "incomplete", "failed"]


def ended_status(answer: Answer) -> Status:
    """Of an answer whose text has ended."""
    return "incomplete" if answer.texts[0].ending.reason == "length" else "completed"


def response_object(
    answer: Answer,
    output: ResponseOutput,
    status: Status,
    error: dict[str, str] | None = None,
) -> dict[str, Any]:
    """What came of the request so far, and once it is over what it cost. What it asked for
    (`echo`) goes after that."""
    cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
    return {
        "id": ID_PREFIX + answer.identity.rid,
        "object": "response",
        "created_at": answer.identity.created_s,
        "status": status,
        "error": error,
        "incomplete_details": cut,
        "model": answer.identity.model,
        "output": [item.shown() for item in output.items],
        "usage": None if status == "in_progress" else _usage(answer),
        "background": False,
    }


def _usage(answer: Answer) -> dict[str, Any]:
    cost = answer.usage()
    details = cost.get("completion_tokens_details", {"reasoning_tokens": 0})
    return {
        "input_tokens": cost["prompt_tokens"],
        "input_tokens_details": cost["prompt_tokens_details"],
        "output_tokens": cost["completion_tokens"],
        "output_tokens_details": details,
        "total_tokens": cost["total_tokens"],
    }
