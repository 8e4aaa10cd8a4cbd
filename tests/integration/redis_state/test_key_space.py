"""What Redis really holds after everything was used: only documented keys, all with a life."""

import hashlib
import re

import pytest

from shared.queue.backlog import BacklogEntry
from shared.state import keys as key_table
from shared.state.keys import (
    ABANDONED_TTL_S,
    CALL_TTL_S,
    CLIENT_KEY_TTL_S,
    CONVICT_TTL_S,
    ENDED_TTL_S,
    KV_TTL_S,
    LIVE_TTL_S,
    SHAPE,
    TRAFFIC_TTL_S,
    WORKER_KEYS_TTL_S,
)
from shared.state.kv_events import KVEvent
from shared.state.notes.receipt_calls import Call
from shared.state.notes.scaling import Scaling
from shared.state.records import AdmittedRequest, ClientKey, Outcome, RequestState
from shared.state.reply import as_int, as_list, as_text
from tests.integration.redis_state.backends import RedisBackend
from tests.integration.redis_state.test_registry_contract import ENTRY

pytestmark = pytest.mark.anyio

ROW = re.compile(
    r"^\| (?P<key>[a-z-]+)(:\{\w+\})? +\| (?P<type>\w+) +\|[^|]*\| (?P<life>[^|]*) \|$"
)
SECONDS = {
    "LIVE": [LIVE_TTL_S],
    "RECORD": [LIVE_TTL_S, ENDED_TTL_S, ABANDONED_TTL_S],
    "CALL": [CALL_TTL_S],
    "CONVICT": [CONVICT_TTL_S],
    "CLIENT_KEY": [LIVE_TTL_S, CLIENT_KEY_TTL_S, ABANDONED_TTL_S],
    "WORKER_KEYS": [WORKER_KEYS_TTL_S],
    "KV": [KV_TTL_S],
    "TRAFFIC": [TRAFFIC_TTL_S],
}


def documented() -> dict[str, tuple[str, list[int]]]:
    """Key family -> (type, lives in seconds), from the table in the module's docstring."""
    table = {}
    for row in filter(None, map(ROW.match, (key_table.__doc__ or "").splitlines())):
        if row["key"] != "key":
            table[row["key"]] = (row["type"], SECONDS[row["life"].strip()])
    return table


async def use_everything(backend: RedisBackend) -> None:
    requests = [
        AdmittedRequest(f"r{n}", "g.1", "acme", "pool", 10, 0, ClientKey(f"k{n}", "body"))
        for n in range(3)
    ]
    await backend.liveness.beat("g.1")
    for request in requests:
        await backend.records.admit(request, max_live=5)
    await backend.records.finish(requests[0], Outcome(RequestState.DONE, "stop", 1, 0))
    await backend.records.reap("r1", "g.1", 1)
    await backend.records.convict(("print",), CONVICT_TTL_S)
    await backend.registry().register(ENTRY)
    await backend.registry().drain(ENTRY.pool, ENTRY.incarnation, 30)
    name = hashlib.sha256(b"block").digest()
    await backend.kv_events().publish(KVEvent("w.1", 1, stored=(name,)))
    await backend.scaling.tell("pool", Scaling("advise", False, "", "", ()))
    calls = backend.receipt_calls("g.2")
    await calls.ask("r0")
    await calls.tell(Call("r0", "c"), b"{}")
    await backend.backlog().put(BacklogEntry("r9", "g.1", "acme", 10, heads=(name,)))


async def test_every_key_is_in_the_table_and_dies(redis_backend: RedisBackend) -> None:
    await use_everything(redis_backend)
    client, prefix = redis_backend.client, f"{redis_backend.keys.deployment}:{SHAPE}:"
    table, seen = documented(), set()
    for name in as_list(await client.command("KEYS", f"{redis_backend.keys.deployment}:*")):
        key = as_text(name)
        assert key.startswith(prefix)
        family = key.removeprefix(prefix).partition(":")[0]
        kind, lives = table[family]
        assert as_text(await client.command("TYPE", key)) == kind
        left = as_int(await client.command("TTL", key))
        assert any(life - 5 <= left <= life for life in lives), (key, left)
        seen.add(family)
    assert seen == set(table)


async def test_an_ended_record_is_gone_after_a_minute(redis_backend: RedisBackend) -> None:
    """At 500 requests/s each minute of their life is 30,000 records in memory."""
    await use_everything(redis_backend)
    left_s = as_int(await redis_backend.client.command("TTL", redis_backend.keys.request("r0")))
    assert 0 < left_s <= 60


async def test_releases_that_would_misread_each_other_see_nothing_of_each_other(
    redis_backend: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even the owner of a backlog's entry, whose beats the other one cannot see."""
    await use_everything(redis_backend)
    monkeypatch.setattr(key_table, "SHAPE", SHAPE + 1)
    assert await redis_backend.registry().pools() == frozenset()
    assert await redis_backend.registry().list(ENTRY.pool) == ()
    assert await redis_backend.records.read("r0") is None
    assert await redis_backend.backlog().drop_orphans() == 0
    assert await redis_backend.backlog().pop() is None
    await use_everything(redis_backend)
    monkeypatch.undo()
    assert await redis_backend.registry().list(ENTRY.pool) == (ENTRY,)
    assert await redis_backend.backlog().length() == 1
