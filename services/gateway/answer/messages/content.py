"""What an answer's content blocks and its end are called in Anthropic's shape."""

from typing import Any

from services.gateway.answer.answer import Answer
from services.gateway.answer.choice import ChoiceText
from services.gateway.answer.parted_text import PartedText
from services.gateway.parts.part import (
    CallStart,
    Part,
    ReasoningPart,
)
from shared.errors import RequestError
from shared.fields.json_body import load_arguments
from shared.text.ending import Ending

ID_PREFIX = "msg_"
_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def message_id(answer: Answer) -> str:
    return ID_PREFIX + answer.identity.rid


def message_usage(answer: Answer) -> dict[str, Any]:
    """What the request cost so far. The three kinds of input tokens add up to the prompt."""
    cost = answer.usage()
    num_cached_tokens = cost["prompt_tokens_details"]["cached_tokens"]
    usage = {
        "input_tokens": cost["prompt_tokens"] - num_cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": num_cached_tokens,
        "output_tokens": cost["completion_tokens"],
    }
    if (details := cost.get("completion_tokens_details")) is not None:
        usage["output_tokens_details"] = {"thinking_tokens": details["reasoning_tokens"]}
    return usage


def message_ending(ending: Ending) -> dict[str, str | None]:
    """`stop_reason` and `stop_sequence`. A stop string comes before calls: it may have cut one."""
    if isinstance(ending.stop_reason, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": ending.stop_reason}
    return {"stop_reason": _REASONS[ending.reason], "stop_sequence": None}


def opened_block(part: Part, text: ChoiceText) -> dict[str, Any]:
    """The empty block that a part begins."""
    if isinstance(part, CallStart):
        assert isinstance(text, PartedText)
        call_id = text.call_id(part.index)
        return {"type": "tool_use", "id": call_id, "name": part.name, "input": {}}
    if isinstance(part, ReasoningPart):
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "text", "text": ""}


def call_input(arguments: str) -> dict[str, Any]:
    """The arguments as an object; empty where `max_tokens` or a stop string cut them, or where
    the model wrote what no JSON answer can hold: NaN, 1e999, nesting without an end."""
    try:
        value = load_arguments(arguments)
    except (ValueError, RequestError):
        return {}
    return value if isinstance(value, dict) else {}
