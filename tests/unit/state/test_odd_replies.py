"""What is well formed and nobody asked for, at each question to Redis: it is unavailable, and no
other error. A proxy, or somebody who writes to our keys, may answer anything.

Guards: a background task that ends with a ValueError writes no record and tells nobody.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shared.errors import StateUnavailableError
from shared.queue.backlog import BacklogEntry
from shared.queue.redis_backlog import RedisBacklog
from shared.state.keys import Keys
from shared.state.kv_events import KVEvent
from shared.state.notes.receipt_calls import ReceiptCalls
from shared.state.notes.scaling import ScalingNotes
from shared.state.records import AdmittedRequest, ClientKey, Outcome, RequestState
from shared.state.redis_client import RedisClient
from shared.state.redis_kv_events import RedisKVEvents
from shared.state.redis_liveness import RedisGatewayLiveness
from shared.state.redis_records import RedisRequestRecords
from shared.state.redis_registry import RedisWorkerRegistry
from shared.state.reply import Reply
from shared.state.traffic import Traffic

WORDS = (b"live", b"done", b"failed", b"accepted", b"put", b"1", b"1-0", b"r1", b"?", b"", b"\xff")
NUMBERS = st.integers(-(2**63), 2**63 - 1)
PACKED = st.recursive(
    st.sampled_from((None, True, 0, -1, b"a", "a")) | NUMBERS,
    lambda inner: st.lists(inner, max_size=8),
    max_leaves=10,
).map(msgpack.packb)
REPLIES: st.SearchStrategy[Reply] = st.recursive(
    st.none() | NUMBERS | st.sampled_from(WORDS) | st.binary(max_size=40) | PACKED,
    lambda inner: st.lists(inner, max_size=6),
    max_leaves=12,
)
KEYS = Keys()
REQUEST = AdmittedRequest("r1", "g.1", "t", "p", 9, 1, ClientKey("k", "b"))
OUTCOME = Outcome(RequestState.DONE, "stop", 1, 0, 1)
ENTRY = BacklogEntry("r1", "g.1", "t", 9)


class Answers:
    """Stands in for a client; each question has the same answer."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply

    async def run(self, *_: object) -> Reply:
        return self._reply

    async def command(self, *_: object) -> Reply:
        return self._reply


Ask = Callable[[RedisClient], Awaitable[object]]


def records(client: RedisClient) -> RedisRequestRecords:
    return RedisRequestRecords(client, KEYS)


def events(client: RedisClient) -> RedisKVEvents:
    return RedisKVEvents(client, KEYS)


def backlog(client: RedisClient) -> RedisBacklog:
    return RedisBacklog(client, KEYS, "p", 9)


def liveness(client: RedisClient) -> RedisGatewayLiveness:
    return RedisGatewayLiveness(client, KEYS)


def registry(client: RedisClient) -> RedisWorkerRegistry:
    return RedisWorkerRegistry(client, KEYS)


ASKS: dict[str, Ask] = {
    "admit": lambda client: records(client).admit(REQUEST),
    "finish": lambda client: records(client).finish(REQUEST, OUTCOME),
    "reap": lambda client: records(client).reap("r1", "g.1", 1),
    "convict": lambda client: records(client).convict(["f"], 9),
    "read a record": lambda client: records(client).read("r1"),
    "publish": lambda client: events(client).publish(KVEvent("w.1", 1)),
    "read events": lambda client: events(client).read({"w.1": 0}),
    "snapshot": lambda client: events(client).snapshot("w.1"),
    "put": lambda client: backlog(client).put(ENTRY),
    "pop": lambda client: backlog(client).pop(),
    "cancel": lambda client: backlog(client).cancel("r1"),
    "drop orphans": lambda client: backlog(client).drop_orphans(),
    "length": lambda client: backlog(client).length(),
    "waiting": lambda client: backlog(client).waiting(),
    "beat": lambda client: liveness(client).beat("g.1"),
    "live requests": lambda client: liveness(client).live_requests("g.1"),
    "forget": lambda client: liveness(client).forget("g.1"),
    "register": lambda client: registry(client).list("p"),
    "pools": lambda client: registry(client).pools(),
    "arrived": lambda client: Traffic(client, KEYS).arrived("p"),
    "ended": lambda client: Traffic(client, KEYS).ended("p"),
    "receipt calls": lambda client: ReceiptCalls(client, KEYS, "g.1").taken(),
    "scaling": lambda client: ScalingNotes(client, KEYS).of("p"),
}


@pytest.mark.parametrize("name", ASKS)
@given(reply=REPLIES)
@example(reply=[])
@example(reply=[b"?"])
@example(reply=[b"1", b"?", b"", 0, 0, 0])
@example(reply=[b"1", b"done", b"", b"x"])
@example(reply=[b"r1", b"\x93\xa1a\xa1b\xa1c"])
@example(reply=[[b"s", [[b"x-0", [b"stored", b""]]]]])
@example(reply=[0, [[b"x-0", [b"e", b"\x90"]]]])
@example(reply=[b"live", b"r1", 1, b"done", b"", b"1"])
@example(reply=[b"g_inc", b"g"])
@example(reply=[b"no colon"])
def test_an_answer_nobody_expects_is_none(name: str, reply: Reply) -> None:
    async def ask() -> None:
        try:
            await ASKS[name](cast(RedisClient, Answers(reply)))
        except StateUnavailableError as error:
            assert "redis" in str(error)

    asyncio.run(ask())
