"""A cell's Redis: whether it answers, keeps what it is given, has room, and agrees on the time."""

import time
from dataclasses import dataclass

from services.cli.doctor.finding import Finding, fail, failed, ok, warn
from shared.errors import StateUnavailableError
from shared.state.redis_client import PASSWORD_REFUSED, RedisClient
from shared.state.reply import as_bytes, as_int, as_list

OLDEST = (6, 2)
FULL_SHARE = 0.8
"""of the memory it may use; beyond this a burst fills it"""
CLOCK_S = 1.0
"""apart; traces and receipts of several hosts no longer line up"""
MIB = 2**20


@dataclass(frozen=True)
class RedisFacts:
    version: str
    policy: str
    """what it does when it is full"""
    max_bytes: int
    """0: no limit"""
    used_bytes: int
    is_replica: bool
    clock_s: float
    """its clock less ours"""


async def gather_redis(client: RedisClient) -> RedisFacts:
    """Reads only. StateUnavailableError where it does not answer, or not this user."""
    clock_s = await _clock(client)
    fields = _fields(as_bytes(await client.command("INFO")))
    return RedisFacts(
        version=fields.get("redis_version", "0"),
        policy=fields.get("maxmemory_policy", "noeviction"),
        max_bytes=int(fields.get("maxmemory", "0")),
        used_bytes=int(fields.get("used_memory", "0")),
        is_replica=fields.get("role") == "slave",
        clock_s=clock_s,
    )


def judge_redis(facts: RedisFacts) -> list[Finding]:
    return [_judge_server(facts), _judge_policy(facts), _judge_room(facts), _judge_clock(facts)]


def judge_no_redis(error: StateUnavailableError) -> Finding:
    """Of what `gather_redis` raised; a password is refused before a command is sent, which shows
    only in the cause."""
    text, cause = str(error), f"{error} {error.__cause__}"
    if "NOPERM" in text or "no permissions" in text:
        seen = "answers, and lets this user not look at it (INFO)"
        return warn("Redis", seen, "give --redis a user that may, to have it checked")
    if any(words in cause for words in PASSWORD_REFUSED):
        return fail("Redis", "answers, and refuses the password", "the right one in --redis")
    if "does not answer" in text:
        seen = text.partition("; ")[0]
        return fail("Redis", seen, "start it, open its port to this machine, or correct --redis")
    return failed("Redis", error, "see its log; a Redis or Valkey of its own is what a cell needs")


def _judge_server(facts: RedisFacts) -> Finding:
    oldest = ".".join(map(str, OLDEST))
    if _numbers(facts.version) < OLDEST:
        seen = f"version {facts.version}, needs {oldest}"
        return fail("Redis", seen, f"run Redis {oldest} or newer, or Valkey")
    if facts.is_replica:
        return fail("Redis", "a replica, which takes no writes", "name its primary with --redis")
    return ok("Redis", f"version {facts.version}")


def _judge_policy(facts: RedisFacts) -> Finding:
    check = "Redis policy"
    if facts.policy == "noeviction":
        return ok(check, "noeviction: when full it refuses, and forgets nothing")
    seen = f"maxmemory-policy is {facts.policy}: when full it drops records of running requests"
    cure = "maxmemory-policy noeviction in redis.conf, and CONFIG SET maxmemory-policy noeviction"
    return fail(check, seen, cure) if facts.max_bytes else warn(check, seen, cure)


def _judge_room(facts: RedisFacts) -> Finding:
    check, used = "Redis memory", facts.used_bytes / MIB
    if not facts.max_bytes:
        return ok(check, f"{used:.0f} MiB used, no limit")
    seen = f"{used:.0f} of {facts.max_bytes / MIB:.0f} MiB used"
    cure = "a higher maxmemory (redis.maxmemory of the chart), or a Redis for this cell alone"
    if facts.used_bytes >= facts.max_bytes:
        return fail(check, f"{seen}: it is full and refuses writes", cure)
    if facts.used_bytes > FULL_SHARE * facts.max_bytes:
        return warn(check, seen, cure)
    return ok(check, seen)


def _judge_clock(facts: RedisFacts) -> Finding:
    apart = abs(facts.clock_s)
    if apart <= CLOCK_S:
        return ok("clock", f"within {CLOCK_S:g} s of Redis'")
    order = "behind" if facts.clock_s > 0 else "ahead of"
    return warn(
        "clock",
        f"this machine is {apart:.1f} s {order} Redis': times of traces do not line up",
        "run NTP on both (chrony or systemd-timesyncd)",
    )


async def _clock(client: RedisClient) -> float:
    before_s = time.time()
    seconds, micros = map(as_int, as_list(await client.command("TIME")))
    return seconds + micros / 1e6 - (before_s + time.time()) / 2


def _fields(text: bytes) -> dict[str, str]:
    lines = text.decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
