"""What a client makes of the events of /v1/responses."""

from collections.abc import Sequence
from typing import Any

ENDS = ("response.completed", "response.incomplete", "response.failed")
TEXTS = {
    "response.output_text": "text",
    "response.reasoning_text": "text",
    "response.function_call_arguments": "arguments",
}
"""event of a text, without `.delta` and `.done` -> the field of `.done` that has all of it"""


def response_of(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The response at the end of a stream; checks that its pieces are that, in order."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    created, begun, *items, end = events
    assert (created["type"], begun["type"]) == ("response.created", "response.in_progress")
    assert created["response"] == begun["response"]
    assert (created["response"]["output"], created["response"]["usage"]) == ([], None)
    assert end["type"] in ENDS
    response: dict[str, Any] = end["response"]
    assert f"response.{response['status']}" == end["type"]
    output: list[dict[str, Any]] = []
    pieces: list[str] = []
    for event in items:
        kind, _, step = event["type"].rpartition(".")
        if event["type"] == "response.output_item.added":
            assert event["output_index"] == len(output)
            output.append(event["item"])
            pieces = []
            assert event["item"]["status"] == "in_progress"
        assert event["output_index"] == len(output) - 1
        if kind in TEXTS:
            assert event["item_id"] == output[-1]["id"]
            if step == "delta":
                pieces.append(event["delta"])
            else:
                assert event[TEXTS[kind]] == "".join(pieces)
        elif event["type"] == "response.content_part.done":
            assert event["part"]["text"] == "".join(pieces)
        elif event["type"] == "response.output_item.done":
            assert event["item"]["id"] == output[-1]["id"]
            assert text_of_item(event["item"]) == "".join(pieces)
            output[-1] = event["item"]
    if end["type"] != "response.failed":
        assert output == response["output"]
    return response


def text_of_item(item: dict[str, Any]) -> str:
    if item["type"] == "function_call":
        arguments: str = item["arguments"]
        return arguments
    return "".join(part["text"] for part in item["content"])


def without_ids(response: dict[str, Any]) -> dict[str, Any]:
    """What two answers to one body have in common."""
    output = [{**item, "id": "", "call_id": ""} for item in response["output"]]
    return {**response, "id": "", "created_at": 0, "output": output}
