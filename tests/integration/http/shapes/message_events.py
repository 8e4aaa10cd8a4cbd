"""What a client makes of the events of /v1/messages."""

import json
from collections.abc import Sequence
from typing import Any


def message_of(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What a client puts together from a stream; checks the order of its events."""
    first, *blocks, end, stop = events
    assert first["type"] == "message_start"
    message: dict[str, Any] = first["message"]
    assert (message["content"], message["stop_reason"]) == ([], None)
    open_index = None
    for event in blocks:
        kind = event["type"]
        if kind == "content_block_start":
            assert open_index is None
            open_index = len(message["content"])
            message["content"].append(event["content_block"])
        assert event["index"] == open_index
        if kind == "content_block_delta":
            add_delta(message["content"][-1], event["delta"])
        elif kind == "content_block_stop":
            open_index = None
    assert open_index is None
    for block in message["content"]:
        if "partial_json" in block:
            block["input"] = json.loads(block.pop("partial_json"))
    assert (end["type"], stop) == ("message_delta", {"type": "message_stop"})
    message |= end["delta"] | {"usage": end["usage"]}
    return message


FIELDS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}


def add_delta(block: dict[str, Any], part: dict[str, Any]) -> None:
    field = FIELDS[part["type"]]
    assert field in block or (block["type"], field) == ("tool_use", "partial_json")
    block[field] = block.get(field, "") + part[field]


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    content = [
        {name: value for name, value in block.items() if name != "id"}
        for block in message["content"]
    ]
    return {**message, "id": "", "content": content}
