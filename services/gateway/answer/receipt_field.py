"""The `baton` member of an answer: what `x-baton-receipt: 1` asks for.

Its stages are the critical path of `/v1/baton/requests/{id}` and add up to the time from the
request's last body byte to the moment the receipt is written into the answer.
"""

import time
from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers

from shared.fields.readers import invalid

HEADER = "x-baton-receipt"

_STAGES = {
    "other": "read",
    "shared_prompt": "shared_prompt",
    "earlier_attempts": "earlier_attempts",
    "queue": "queue",
    "prefill": "prefill",
    "handover": "handover",
    "decode": "decode",
}
"""stage of the critical path -> its name here, in the order of a request's life"""
_SAME = ("id", "prompt_tokens", "cached_tokens", "completion_tokens")
_LAST = ("transport", "bytes", "blocks", "gpu_ms", "saved_gpu_ms")


def receipt_wanted(headers: Headers) -> bool:
    """RequestError for any value but 0 and 1."""
    values = set(headers.getlist(HEADER)) or {"0"}
    if values not in ({"0"}, {"1"}):
        raise invalid(HEADER, "0 or 1")
    return values == {"1"}


def answer_receipt(body: Mapping[str, Any], now_ns: int | None = None) -> dict[str, Any]:
    """From the receipt's body of a request or a group that has ended. `deliver` is what came
    after its recorded end: the last text, a client that reads slowly, the workers' last words."""
    now_ns = time.time_ns() if now_ns is None else now_ns
    path = body["critical_path_ms"]
    stages = {name: round(path[stage], 3) for stage, name in _STAGES.items() if stage in path}
    stages["deliver"] = round(max(0, now_ns - body["ended_ns"]) / 1e6, 3)
    return {
        **{name: body[name] for name in _SAME},
        "stages_ms": stages,
        "total_ms": round(sum(stages.values()), 3),
        **_places(body),
        **{name: body[name] for name in _LAST},
    }


def _places(body: Mapping[str, Any]) -> dict[str, Any]:
    """Where it ran, and why: of the request, or of each choice."""
    if "choices" in body:
        names = ("index", "id", "route", "workers", "attempts")
        choices = [{name: choice[name] for name in names} for choice in body["choices"]]
        return {"choices": choices}
    names = ("epoch", "route", "prefill", "decode", "end")
    attempts = [{name: attempt[name] for name in names} for attempt in body["attempts"]]
    return {"route": body["route"], "workers": body["workers"], "attempts": attempts}
