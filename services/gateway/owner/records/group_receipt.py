"""What a group's receipt says: its members, and their sums. Pure, on the members' bodies."""

from collections.abc import Mapping, Sequence
from typing import Any

_FROM_MEMBER = (
    "id",
    "state",
    "code",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "route",
    "workers",
)
_FROM_LAST = ("slow_because", "slow_because_ms", "slow_because_share")
"""of the choice that ended last, once all have"""
SHARED_PROMPT = "shared_prompt"


def group_body(group: str, members: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The body of `/v1/baton/requests/{id}` for an answer of several choices.

    Prompts count once, with what the first choice of each found in a cache."""
    members = sorted(members, key=lambda member: member["choice"])
    firsts = list({member["prompt"]: member for member in reversed(members)}.values())
    state = _state([member["state"] for member in members])
    return {
        "id": group,
        "endpoint": members[0]["endpoint"],
        "tenant": members[0]["tenant"],
        "state": state,
        "code": next((m["code"] for m in members if m["state"] == state), ""),
        "prompt_tokens": sum(member["prompt_tokens"] for member in firsts),
        "cached_tokens": sum(member["cached_tokens"] for member in firsts),
        "completion_tokens": sum(member["completion_tokens"] for member in members),
        "received_ns": members[0]["received_ns"],
        "accepted_ns": min(member["accepted_ns"] for member in members),
        "ended_ns": 0 if state == "live" else max(member["ended_ns"] for member in members),
        "transport": next((m["transport"] for m in members if m["transport"]), ""),
        "bytes": sum(member["bytes"] for member in members),
        "blocks": sum(member["blocks"] for member in members),
        **{name: None if state == "live" else _last(members)[name] for name in _FROM_LAST},
        "compute_ms": _sum(members, "compute_ms"),
        "kv_byte_seconds": _sum(members, "kv_byte_seconds"),
        "gpu_ms": _whole_sum(members, "gpu_ms"),
        "saved_gpu_ms": _whole_sum(firsts, "saved_gpu_ms"),
        "choices": [_summary(member) for member in members],
        "critical_path_ms": {} if state == "live" else _critical_path_ms(members),
    }


def _state(states: Sequence[str]) -> str:
    """A group is what the worst of its choices is."""
    return next(state for state in ("live", "failed", "cancelled", "done") if state in states)


def _summary(member: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "index": member["choice"],
        "prompt": member["prompt"],
        **{name: member[name] for name in _FROM_MEMBER},
        "attempts": len(member["attempts"]),
        "total_ms": member["critical_path_ms"].get("total", 0.0),
    }


def _last(members: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The choice that ended last."""
    return max(members, key=lambda member: member["ended_ns"])


def _sum(members: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """None: no worker told it."""
    told = [member[name] for member in members if member[name] is not None]
    return round(sum(told), 3) if told else None


def _whole_sum(members: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """None: of one of them it is not known."""
    told = [member[name] for member in members]
    return None if None in told else round(sum(told), 3)


def _critical_path_ms(members: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The path of the choice that ended last. The time it waited for the shared prompt is a stage
    of its own."""
    last = _last(members)
    waited_ns = last["accepted_ns"] - min(member["accepted_ns"] for member in members)
    path = dict(last["critical_path_ms"])
    path["other"] -= waited_ns / 1e6
    return {SHARED_PROMPT: waited_ns / 1e6, **path}
