"""A body of `/v1/baton/live` as the operator's page gets it, with names that are markup."""

from typing import Any

MARKUP = "<img src=x onerror=alert(1)>"


def live_body(num_prefill: int = 2, num_decode: int = 3) -> dict[str, Any]:
    """Of a gateway under load; worker names and events hold markup."""
    prefill = [worker(f"prefill-{number}", "prefill") for number in range(num_prefill)]
    decode = [
        {**worker(f"decode-{number}", "decode"), "gaps_ms": [None, *range(119)]}
        for number in range(num_decode)
    ]
    times = {"p50": 96.0, "p99": 310.0, "count": 240}
    counts = {"done": 200, "failed": 3, "cancelled": 1, "refused": 2, "retried": 4}
    return {
        "now_ns": 1_795_615_716_000_000_000,
        "version": "2026.11.0",
        "model": MARKUP,
        "topology": "pd",
        "gateway": "gateway-7",
        "uptime_s": 24.4,
        "redis": "ok",
        "trouble": "",
        "requests": {
            "live": 44,
            "waiting": 4,
            "oldest_wait_s": 0.8,
            "stages": {"queue": 5, "prefill": 2, "handover": 1, "decode": 36},
        },
        "last_minute": {
            "ttft_ms": times,
            "gap_ms": {"p50": 12.1, "p99": 21.4, "count": 9000},
            "stages_ms": dict.fromkeys(("queue", "prefill", "handover", "decode"), times),
            **counts,
        },
        "since_start": counts,
        "objectives": {
            "ttft": objective(1000.0, 237, 3),
            "gap": objective(50.0, 9000, 0),
        },
        "workers": prefill + decode,
        "hand_overs": [
            {
                "prefill": source["id"],
                "decode": target["id"],
                "transport": "tcp",
                "why": "other hosts",
                "gb_per_s": 12.1,
                "num": 9,
                "bytes": 10**9,
                "in_flight": 1,
            }
            for source in prefill
            for target in decode
        ],
        "autoscaler": autoscaler(),
        "events": [
            {"at_ns": 1_795_615_700_000_000_000, "kind": "worker", "text": MARKUP, "count": 2}
        ],
    }


def objective(limit_ms: float, met: int, missed: int) -> dict[str, Any]:
    """As often missed in the hour as in its last minute."""
    last_minute = {"met": met, "missed": missed}
    last_hour = {"met": 60 * met, "missed": missed}
    return {"limit_ms": limit_ms, "last_minute": last_minute, "last_hour": last_hour}


def autoscaler() -> dict[str, Any]:
    """It orders a prefill worker, and waits for it."""
    return {
        "mode": "builtin",
        "acts": True,
        "holds": "a prefill worker starts",
        "trouble": "",
        "roles": (
            scaling_of("prefill", 2, 3, "2 keep 97.1 % of first tokens within 1 s"),
            scaling_of("decode", 3, 3, ""),
        ),
    }


def scaling_of(role: str, replicas: int, wanted: int, reason: str) -> dict[str, Any]:
    return {
        "role": role,
        "replicas": replicas,
        "wanted": wanted,
        "num_draining": 0,
        "reason": reason,
    }


def worker(name: str, role: str) -> dict[str, Any]:
    return {
        "id": f"{name}{MARKUP if name.endswith('-1') else ''}",
        "role": role,
        "pid": 7,
        "host": "here",
        "incarnation": f"{name}.1",
        "protocol": 6,
        "state": "ready",
        "kv": {"total": 1000, "free": 200, "cached": 90, "held": 710},
        "idle_room_tokens": 4096,
        "running": 37,
        "waiting": 1,
        "ranks": 1,
        "memory_bytes": {},
        "rates": {"prompt_tokens_s": 4000.0, "tokens_s": 900.0},
        "step_costs": {},
        "step_error": None,
        "heartbeat_age_s": 0.2,
        "queued_tokens": 31_000,
        "queued_s": 1.9,
    }
