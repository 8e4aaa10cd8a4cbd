"""Contract of RequestRecords and GatewayLiveness, on every implementation."""

import asyncio
from dataclasses import replace

import pytest

from shared.state.records import (
    MAX_CONVICTED,
    Admission,
    AdmittedRequest,
    ClientKey,
    FinalState,
    Finish,
    KeyTaken,
    Outcome,
    ReapVerdict,
    RequestRecord,
    RequestState,
)
from tests.integration.redis_state.backends import Backend

pytestmark = pytest.mark.anyio

REQUEST = AdmittedRequest("r1", "g.1", "acme", "pool", 100, 1_700_000_000_000_000_000)
DONE = Outcome(RequestState.DONE, "stop", 7, 64, 2)
FAILED = Outcome(RequestState.FAILED, "internal", 3, 0)


async def state_of(backend: Backend, rid: str = "r1") -> RequestState | None:
    record = await backend.records.read(rid)
    return None if record is None else record.state


async def test_admit_twice_is_one_admission(backend: Backend) -> None:
    records = backend.records
    assert await records.admit(REQUEST) is Admission.ADMITTED
    assert await records.admit(REQUEST) is Admission.ADMITTED
    assert await records.read("r1") == RequestRecord(REQUEST, RequestState.LIVE, "", 0, 0, 0)
    assert await backend.liveness.live_requests("g.1") == {"r1"}


async def test_a_rid_belongs_to_the_gateway_that_came_first(backend: Backend) -> None:
    records = backend.records
    await records.admit(REQUEST)
    thief = replace(REQUEST, gateway_incarnation="g.2")
    assert await records.admit(thief) is Admission.TAKEN
    assert await records.finish(thief, DONE) == Finish(None, written=False)
    assert await state_of(backend) is RequestState.LIVE
    assert await backend.liveness.live_requests("g.2") == frozenset()


async def test_convicts_are_known_to_all_and_for_a_while(backend: Backend) -> None:
    records = backend.records
    assert await records.convict((), 600) == {}
    noted = await records.convict(("a", "b"), 600)
    assert noted.keys() == {"a", "b"} and all(590 <= left <= 600 for left in noted.values())
    again = await records.convict((), 600)
    assert again.keys() == {"a", "b"}
    assert (await records.convict(("c",), 0)).keys() == {"a", "b"}, "its time is over"
    many = await records.convict([f"d{number}" for number in range(MAX_CONVICTED)], 700)
    assert len(many) == MAX_CONVICTED and not many.keys() & {"a", "b"}, "the oldest goes"


async def test_quota_counts_live_requests_of_the_tenant(backend: Backend) -> None:
    records = backend.records
    first, second, third = (replace(REQUEST, rid=f"r{n}") for n in range(3))
    other = replace(REQUEST, rid="other", tenant="zenith")
    assert await records.admit(first, max_live=2) is Admission.ADMITTED
    assert await records.admit(second, max_live=2) is Admission.ADMITTED
    assert await records.admit(second, max_live=2) is Admission.ADMITTED
    assert await records.admit(third, max_live=2) is Admission.OVER_QUOTA
    assert await records.read(third.rid) is None
    assert await records.admit(other, max_live=2) is Admission.ADMITTED
    await records.finish(first, DONE)
    assert await records.admit(third, max_live=2) is Admission.ADMITTED


async def test_the_first_finish_stands(backend: Backend) -> None:
    records = backend.records
    await records.admit(REQUEST)
    assert await records.finish(REQUEST, DONE) == Finish(DONE, written=True)
    assert await records.finish(REQUEST, DONE) == Finish(DONE, written=False)
    assert await records.finish(REQUEST, FAILED) == Finish(DONE, written=False)
    assert await records.read("r1") == RequestRecord(REQUEST, RequestState.DONE, "stop", 7, 64, 2)
    assert await records.admit(REQUEST) is Admission.ENDED
    assert await backend.liveness.live_requests("g.1") == frozenset()


async def test_of_many_finishes_at_once_one_writes(backend: Backend) -> None:
    records = backend.records
    await records.admit(REQUEST)
    outcomes = [replace(DONE, num_output_tokens=n) for n in range(20)]
    answers = await asyncio.gather(*(records.finish(REQUEST, item) for item in outcomes))
    assert sum(answer.written for answer in answers) == 1
    assert len({answer.outcome for answer in answers}) == 1


async def test_finish_without_a_record_writes_it_whole(backend: Backend) -> None:
    records = backend.records
    assert await records.finish(REQUEST, DONE) == Finish(DONE, written=True)
    assert await records.admit(REQUEST) is Admission.ENDED
    assert await state_of(backend) is RequestState.DONE


async def test_reap_needs_the_beat_to_stand_still(backend: Backend) -> None:
    records, liveness = backend.records, backend.liveness
    beat = (await liveness.beat("g.1"))["g.1"]
    await records.admit(REQUEST)
    await liveness.beat("g.1")
    assert await records.reap("r1", "g.1", beat) is ReapVerdict.ALIVE
    assert await records.reap("r1", "g.never", beat) is ReapVerdict.ALIVE
    assert await state_of(backend) is RequestState.LIVE


async def test_reap_keeps_the_last_mark_as_usage(backend: Backend) -> None:
    records = backend.records
    await records.admit(REQUEST, max_live=1)
    await records.mark("g.1", {"r1": 5, "absent": 9})
    await records.mark("g.1", {"r1": 4})
    await records.mark("g.2", {"r1": 50})
    for _ in range(2):
        assert await records.reap("r1", "g.1", 0) is ReapVerdict.REAPED
    record = await records.read("r1")
    assert record is not None
    assert (record.state, record.code, record.num_output_tokens) == (
        RequestState.ABANDONED,
        "gateway_lost",
        5,
    )
    assert await backend.liveness.live_requests("g.1") == frozenset()
    freed = replace(REQUEST, rid="r2")
    assert await records.admit(freed, max_live=1) is Admission.ADMITTED


async def test_abandoned_is_provisional_for_its_owner_only(backend: Backend) -> None:
    records = backend.records
    await records.admit(REQUEST)
    await records.reap("r1", "g.1", 0)
    thief = replace(REQUEST, gateway_incarnation="g.2")
    assert await records.finish(thief, FAILED) == Finish(None, written=False)
    assert await records.finish(REQUEST, DONE) == Finish(DONE, written=True)
    assert await records.reap("r1", "g.1", 0) is ReapVerdict.ENDED
    assert await state_of(backend) is RequestState.DONE


async def test_an_owner_that_comes_back_makes_its_request_live_again(backend: Backend) -> None:
    records = backend.records
    await records.admit(REQUEST)
    await records.mark("g.1", {"r1": 5})
    await records.reap("r1", "g.1", 0)
    assert await records.admit(REQUEST) is Admission.ADMITTED
    record = await records.read("r1")
    assert record is not None
    assert (record.state, record.num_output_tokens) == (RequestState.LIVE, 5)
    assert await backend.liveness.live_requests("g.1") == {"r1"}


async def test_reaping_what_is_not_there_is_told(backend: Backend) -> None:
    await backend.liveness.beat("g.1")
    assert await backend.records.reap("absent", "g.1", 1) is ReapVerdict.GONE


async def test_marks_stop_at_the_end(backend: Backend) -> None:
    records = backend.records
    await records.admit(REQUEST)
    await records.finish(REQUEST, DONE)
    await records.mark("g.1", {"r1": 99})
    await records.mark("g.1", {})
    record = await records.read("r1")
    assert record is not None
    assert record.num_output_tokens == 7


async def test_beats_count_and_show_everybody(backend: Backend) -> None:
    liveness = backend.liveness
    await liveness.beat("g.1")
    await liveness.beat("g.2")
    assert await liveness.beat("g.1") == {"g.1": 2, "g.2": 1}


async def test_an_admission_makes_its_gateway_visible(backend: Backend) -> None:
    await backend.records.admit(REQUEST)
    assert await backend.liveness.beat("g.2") == {"g.1": 0, "g.2": 1}


async def test_a_gateway_is_forgotten_when_it_owns_nothing(backend: Backend) -> None:
    records, liveness = backend.records, backend.liveness
    await liveness.beat("g.1")
    await records.admit(REQUEST)
    assert not await liveness.forget("g.1")
    await records.finish(REQUEST, DONE)
    assert not await liveness.forget("g.1", beat=7)
    assert await liveness.forget("g.1", beat=1)
    assert await liveness.forget("g.1")
    assert await liveness.beat("g.2") == {"g.2": 1}


KEY = ClientKey("key", "body")
KEYED = replace(REQUEST, client_key=KEY)
REPEATED = replace(KEYED, rid="r2", gateway_incarnation="g.2")


async def test_a_client_s_key_belongs_to_one_request(backend: Backend) -> None:
    records = backend.records
    assert await records.admit(KEYED) is Admission.ADMITTED
    assert await records.admit(KEYED) is Admission.ADMITTED, "a repeat is the same request"
    assert await records.read("r1") == RequestRecord(KEYED, RequestState.LIVE, "", 0, 0, 0)
    assert await records.admit(REPEATED) == KeyTaken("r1", True, None)
    assert await records.read("r2") is None
    assert await backend.liveness.live_requests("g.2") == frozenset()
    await records.finish(KEYED, DONE)
    assert await records.admit(REPEATED) == KeyTaken("r1", True, DONE)
    other = replace(REPEATED, client_key=ClientKey("other", "body"))
    assert await records.admit(other) is Admission.ADMITTED


@pytest.mark.parametrize("ended", [False, True])
async def test_a_client_s_key_belongs_to_one_body(backend: Backend, *, ended: bool) -> None:
    records = backend.records
    await records.admit(KEYED)
    if ended:
        await records.finish(KEYED, DONE)
    other = replace(REPEATED, client_key=ClientKey(KEY.name, "another"))
    assert await records.admit(other) == KeyTaken("r1", False, DONE if ended else None)


async def test_an_abandoned_request_leaves_its_key_to_the_next_and_is_billed_nothing(
    backend: Backend,
) -> None:
    records = backend.records
    await backend.liveness.beat("g.1")
    await records.admit(KEYED)
    assert await records.reap("r1", "g.1", 1) is ReapVerdict.REAPED
    other = replace(REPEATED, client_key=ClientKey(KEY.name, "another"))
    assert await records.admit(other) == KeyTaken("r1", False, None)
    assert await records.admit(REPEATED) is Admission.ADMITTED
    superseded = Outcome(RequestState.CANCELLED, "superseded", 0, 0, DONE.num_attempts)
    assert await records.finish(KEYED, DONE) == Finish(superseded, written=True)
    assert await records.finish(REPEATED, FAILED) == Finish(FAILED, written=True)
    assert await records.admit(replace(REPEATED, rid="r3")) == KeyTaken("r2", True, FAILED)


async def test_an_owner_that_was_only_paused_ends_as_if_it_had_not_been(backend: Backend) -> None:
    records = backend.records
    await backend.liveness.beat("g.1")
    await records.admit(KEYED)
    await records.reap("r1", "g.1", 1)
    assert await records.finish(KEYED, DONE) == Finish(DONE, written=True)
    assert await records.admit(REPEATED) == KeyTaken("r1", True, DONE)


async def test_what_redis_lost_of_a_key_is_written_with_the_end(backend: Backend) -> None:
    records = backend.records
    assert await records.finish(KEYED, DONE) == Finish(DONE, written=True)
    assert await records.admit(REPEATED) == KeyTaken("r1", True, DONE)


@pytest.mark.parametrize("state", [RequestState.FAILED, RequestState.CANCELLED])
async def test_a_request_that_delivered_nothing_leaves_its_key_to_the_next(
    backend: Backend, state: FinalState
) -> None:
    records = backend.records
    await records.admit(KEYED)
    await records.finish(KEYED, Outcome(state, "state_unavailable", 0, 0))
    other = replace(REPEATED, client_key=ClientKey(KEY.name, "another"))
    assert await records.admit(other) is Admission.ADMITTED
    await records.finish(other, Outcome(state, "cancelled", 1, 0))
    taken = await records.admit(replace(other, rid="r3"))
    assert taken == KeyTaken("r2", True, Outcome(state, "cancelled", 1, 0))
