"""Memory and Redis answer the same to any sequence of calls; changed scripts are caught."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from shared.queue import redis_backlog
from shared.queue.backlog import ANY_ROOM, BacklogEntry
from shared.queue.room import LongPlace, Room
from shared.state import redis_records
from shared.state.keys import Keys
from shared.state.records import AdmittedRequest, Outcome, RequestState
from shared.state.redis_client import RedisClient, Script
from tests.integration.redis_state.backends import Backend, MemoryBackend, RedisBackend
from tests.support.redis_server import RedisServers, server_names

Call = Callable[[Backend], Awaitable[object]]

MANY = settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

RIDS = st.sampled_from(["r1", "r2", "r3"])
GATEWAYS = st.sampled_from(["g.1", "g.1", "g.1", "g.2"])
REQUESTS = st.builds(
    AdmittedRequest,
    RIDS,
    GATEWAYS,
    st.just("a"),
    st.just("pool"),
    st.just(9),
    st.just(1),
)
OUTCOMES = st.builds(
    Outcome,
    st.sampled_from([RequestState.DONE, RequestState.FAILED, RequestState.CANCELLED]),
    st.sampled_from(["stop", "length"]),
    st.integers(0, 9),
    st.integers(0, 9),
    st.integers(1, 4),
)


def admit(request: AdmittedRequest, max_live: int) -> Call:
    return lambda backend: backend.records.admit(request, max_live)


def mark(gateway_incarnation: str, progress: dict[str, int]) -> Call:
    return lambda backend: backend.records.mark(gateway_incarnation, progress)


def finish(request: AdmittedRequest, outcome: Outcome) -> Call:
    return lambda backend: backend.records.finish(request, outcome)


def reap(rid: str, gateway_incarnation: str, beat: int) -> Call:
    return lambda backend: backend.records.reap(rid, gateway_incarnation, beat)


def read(rid: str) -> Call:
    return lambda backend: backend.records.read(rid)


def beat(gateway_incarnation: str) -> Call:
    return lambda backend: backend.liveness.beat(gateway_incarnation)


def forget(gateway_incarnation: str) -> Call:
    return lambda backend: backend.liveness.forget(gateway_incarnation)


def live(gateway_incarnation: str) -> Call:
    return lambda backend: backend.liveness.live_requests(gateway_incarnation)


RECORD_CALLS = st.lists(
    st.one_of(
        st.builds(admit, REQUESTS, st.integers(0, 2)),
        st.builds(admit, REQUESTS, st.just(2)),
        st.builds(mark, GATEWAYS, st.dictionaries(RIDS, st.integers(0, 9))),
        st.builds(mark, st.just("g.1"), st.dictionaries(RIDS, st.integers(0, 9), min_size=2)),
        st.builds(finish, REQUESTS, OUTCOMES),
        st.builds(reap, RIDS, st.just("g.1"), st.just(0)),
        st.builds(reap, RIDS, GATEWAYS, st.integers(0, 1)),
        st.builds(read, RIDS),
        st.builds(beat, st.just("g.2")),
        st.builds(forget, GATEWAYS),
        st.builds(live, GATEWAYS),
    ),
    min_size=20,
    max_size=40,
)

HEADS = [hashlib.sha256(bytes([n])).digest() for n in range(4)]
ENTRIES = st.builds(
    BacklogEntry,
    st.sampled_from([f"r{n}" for n in range(30)]),
    st.just("g.1"),
    st.sampled_from(["a", "b", "c"]),
    st.integers(1, 50),
    st.sampled_from([0, 0, 0, 1, 7]),
    st.lists(st.sampled_from(HEADS), max_size=3).map(tuple),
    st.sampled_from([1, 1, 3]),
    st.integers(0, 60),
)
ENDS = st.builds(
    AdmittedRequest,
    st.uuids().map(str),
    st.just("g.1"),
    st.sampled_from(["a", "b", "c"]),
    st.just("pool"),
    st.just(9),
    st.just(1),
    backlog=st.just("pool"),
    priority=st.sampled_from([0, 0, 0, 1, 7]),
)
"""of requests that were served, by tenant"""
ROOMS = st.builds(
    Room,
    st.sampled_from([20, 60]),
    st.sampled_from([9, 9, 9, 9, 9, 9, 9, 0]),
    st.just(0),
    st.sampled_from([0, 0, 0, 1, 1, 2, 2, -1]),
)
"""of workers to which prompts of more than 10 or 30 tokens are long, or none are"""
OWED = st.builds(
    Outcome,
    st.just(RequestState.DONE),
    st.just("stop"),
    st.just(9),
    st.just(0),
    owed=st.integers(-80, 80),
)


def put(entry: BacklogEntry, max_tokens_ahead: int | None, start: int | None = None) -> Call:
    return lambda backend: backend.queue.put(entry, max_tokens_ahead, start)


def pop(held: list[bytes], room: Room = ANY_ROOM) -> Call:
    return lambda backend: backend.queue.pop(held, room)


def cancel(rid: str) -> Call:
    return lambda backend: backend.queue.cancel(rid)


def length() -> Call:
    return lambda backend: backend.queue.length()


ANY_BACKLOG_CALLS = st.lists(
    st.one_of(
        st.builds(put, ENTRIES, st.none() | st.integers(0, 200)),
        st.builds(put, ENTRIES, st.none()),
        st.builds(put, ENTRIES, st.none(), st.integers(0, 200)),
        st.builds(pop, st.just([])),
        st.builds(pop, st.lists(st.sampled_from(HEADS), max_size=3, unique=True)),
        st.builds(pop, st.lists(st.sampled_from(HEADS), max_size=3, unique=True), ROOMS),
        st.builds(pop, st.just([]), ROOMS),
        st.builds(cancel, st.sampled_from([f"r{n}" for n in range(30)])),
        st.builds(finish, ENDS, OWED),
        st.builds(length),
    ),
    min_size=30,
    max_size=60,
)
SHORT_OR_LONG = st.builds(
    BacklogEntry,
    st.uuids().map(str),
    st.just("g.1"),
    st.sampled_from(["a", "b"]),
    st.sampled_from([10, 40]),
    st.sampled_from([0, 0, 0, 1]),
)
PASSING_CALLS = st.lists(
    st.one_of(
        st.builds(put, SHORT_OR_LONG, st.none()),
        st.builds(pop, st.just([]), st.just(Room(60, 60, 60, LongPlace.NONE))),
        st.builds(pop, st.just([]), st.just(Room(60, 60, 60, LongPlace.ANY))),
    ),
    min_size=8,
    max_size=16,
)
"""short prompts that wait behind long ones, and pass"""
BACKLOG_CALLS = (ANY_BACKLOG_CALLS | PASSING_CALLS).map(lambda calls: [beat("g.1"), *calls])
"""the owner beats, so a full backlog drops nothing of its own accord"""


def assert_same(url: str, calls: Sequence[Call]) -> None:
    async def play() -> None:
        async with RedisClient(url) as client:
            twins = (MemoryBackend(), RedisBackend(client, Keys(f"twin-{uuid4().hex}")))
            for call in calls:
                ours, theirs = [await call(twin) for twin in twins]
                assert ours == theirs

    asyncio.run(play())


@pytest.mark.parametrize("server", server_names())
@given(calls=RECORD_CALLS)
@MANY
def test_records_agree(redis_servers: RedisServers, server: str, calls: list[Call]) -> None:
    assert_same(redis_servers.url(server), calls)


@pytest.mark.parametrize("server", server_names())
@given(calls=BACKLOG_CALLS)
@MANY
def test_backlogs_agree(redis_servers: RedisServers, server: str, calls: list[Call]) -> None:
    assert_same(redis_servers.url(server), calls)


MOST_EXAMPLES = 2000
"""the rarest mutant shows once in some hundred lists of calls; the search ends where it does"""
MUTANTS = [
    ("ADMIT", "if owner and owner ~= g_inc", "if false"),
    ("ADMIT", "and state ~= 'abandoned'", ""),
    ("ADMIT", ">= max_live", "> max_live"),
    ("MARK", "stored[2] == 'live'", "true"),
    ("MARK", "tonumber(count) > ", "tonumber(count) ~= "),
    ("FINISH", "if owner and owner ~= g_inc", "if false"),
    ("FINISH", "if not owner or state == 'live' or state == 'abandoned'", "if true"),
    ("FINISH", "or state == 'abandoned'", ""),
    ("FINISH", "redis.call('SREM', KEYS[2], rid)", ""),
    ("FINISH", "redis.call('SREM', KEYS[3], rid)", ""),
    ("FINISH", "ARGV[10] ~= '0' and", "false and"),
    ("FINISH", "'owed:' .. ARGV[8]", "'owed:0'"),
    ("REAP", "~= beat", "== 'never'"),
    ("REAP", "if stored[2] == 'live'", "if stored[2]"),
    ("REAP", "redis.call('SREM', ARGV[5] .. stored[3], rid)", ""),
    ("PUT", "math.max(v, tonumber", "math.max(0, tonumber"),
    ("PUT", "start = math.max(v, tonumber(", "start = math.min(v, tonumber("),
    ("PUT", "math.min(paid_start, start) or start", "start"),
    ("PUT", "and math.min(paid_start, start) or", "and paid_start or"),
    ("PUT", "if paid_start < 0 then", "if true then"),
    ("PUT", "math.max(finished, base", "math.max(0, base"),
    ("PUT", "start + math.max(0, due)", "start + 1"),
    ("PUT", "due = due + ", "due = due - "),
    ("PUT", "redis.call('HSET', clock, owed, exact(due))", "redis.call('HDEL', clock, owed)"),
    ("PUT", "else\n    redis.call('HDEL', clock, owed)\n", ""),
    ("PUT", "redis.call('HDEL', clock, name)", "redis.call('HGET', clock, name)"),
    ("PUT", "'^owed:' .. class .. ':'", "'^owed:'"),
    ("PUT", "exact(base + start)) >= tonumber(ARGV[7])", "'+inf') >= tonumber(ARGV[7])"),
    ("PUT", "if known then", "if false then"),
    ("PUT", "== 0 then\n    redis.call('ZREMRANGE", "== -1 then\n    redis.call('ZREMRANGE"),
    ("POP", "each[4] > going[best][4]", "each[4] >= going[best][4]"),
    ("POP", "or score >= (class + 1) * SPAN", ""),
    ("POP", "and class > last_class", ""),
    ("POP", "tonumber(tokens) > long_tokens", "tonumber(tokens) >= long_tokens"),
    ("POP", "is_long or takes_short", "true"),
    ("POP", "tenant ~= other[1] and", ""),
    ("POP", "score > other[2]", "score < other[2]"),
    ("POP", "score + (entry[7] or entry[5])", "score + entry[5]"),
    ("POP", "'v' .. class, string", "'v', string"),
    ("POP", "math.max(v, head_score", "math.max(0, head_score"),
    ("CANCEL", "redis.call('ZREM'", "redis.call('ZSCORE'"),
]


def planted(module: Any, name: str, old: str, new: str) -> Script:
    script: Script = getattr(module, name)
    assert script.text.count(old) == 1, f"{old!r} is not exactly once in {script.name}.lua"
    return Script(script.name, script.text.replace(old, new))


@pytest.mark.parametrize(("name", "old", "new"), MUTANTS)
def test_a_changed_script_is_caught(
    redis_servers: RedisServers, monkeypatch: pytest.MonkeyPatch, name: str, old: str, new: str
) -> None:
    module = redis_backlog if name in ("PUT", "POP", "CANCEL") else redis_records
    monkeypatch.setattr(module, name, planted(module, name, old, new))
    owes = module is redis_backlog or "owed" in old or "ARGV[10]" in old
    calls = BACKLOG_CALLS if owes else RECORD_CALLS

    @given(calls=calls)
    @settings(MANY, max_examples=MOST_EXAMPLES, phases=[Phase.generate], database=None)
    def search(calls: list[Call]) -> None:
        assert_same(redis_servers.url(), calls)

    with pytest.raises(Exception):  # noqa: B017
        search()
