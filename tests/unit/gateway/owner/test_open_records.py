"""One record per HTTP request: what Redis hears of an answer with several choices, and when.

The failures guarded: a request that counts as often as it has choices, a record that is never ended
because a choice never began, one that is ended before the last choice is, usage counted twice.
"""

import asyncio
import itertools
from dataclasses import replace

import pytest

from services.gateway.owner.generation import Generation, Group
from services.gateway.owner.records.open_records import OpenRecord
from shared.errors import AttemptError, OverloadedError, StateRefusedError
from shared.protocol import Assign, Attempt, Refuse, Start
from shared.state.records import (
    Admission,
    AdmittedRequest,
    KeyTaken,
    Outcome,
    RequestRecord,
    RequestState,
)
from tests.unit.gateway.owner.gateway_bench import (
    G_INC,
    Bench,
    FakeWorker,
    settle,
    started,
    until,
)

pytestmark = pytest.mark.anyio
NUM_PROMPT = 40


def submit(bench: Bench, *choices: int, num_choices: int = 3) -> list[Generation]:
    """Choices of the HTTP request "g", each with two tokens to come."""
    group = Group("g", num_choices, NUM_PROMPT)
    requests = [bench.request(f"r{at}", NUM_PROMPT, max_tokens=2) for at in choices]
    return [
        bench.door.submit(replace(request, group=group, choice=at))
        for at, request in zip(choices, requests, strict=True)
    ]


def end(p: FakeWorker, d: FakeWorker, choice: int, cached: int = 0) -> None:
    """Both tokens of a choice that waits on the prefill worker."""
    (assign,) = (one for one in p.all(Assign) if one.work.attempt.rid == f"r{choice}")
    p.say(Start(assign.work.attempt, p.incarnation, cached, p.load))
    p.run(assign, 0, 10)
    d.run(assign, 0, 10, 11, reason="length")


async def record_of(bench: Bench) -> RequestRecord:
    record = await bench.records.read("g")
    assert record is not None
    return record


def state(record: RequestRecord) -> tuple[RequestState, str, int]:
    return record.state, record.code, record.num_output_tokens


async def running(bench: Bench) -> tuple[FakeWorker, FakeWorker]:
    p, d = FakeWorker("prefill", "p0"), FakeWorker("decode", "d0")
    await bench.add(p, d)
    return p, d


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
async def test_choices_that_end_in_any_order_are_one_record(order: tuple[int, ...]) -> None:
    async with started(Bench()) as bench:
        p, d = await running(bench)
        submit(bench, 0, 1, 2)
        await settle()
        for number, choice in enumerate(order, start=1):
            assert (await record_of(bench)).state is RequestState.LIVE
            end(p, d, choice)
            await settle()
            assert bench.door.status()["requests"] == {"live": 3 - number}
        record = await record_of(bench)
        assert state(record) == (RequestState.DONE, "length", 6)
        assert record.request.num_prompt_tokens == NUM_PROMPT
        assert bench.records.calls == [("admit", "g"), ("finish", "g")]
        assert not bench.records.liveness.live[G_INC]
        assert not bench.requests.progress()


async def test_only_the_end_of_the_last_choice_waits_for_redis() -> None:
    async with started(Bench()) as bench:
        p, d = await running(bench)
        first, last = submit(bench, 0, 1, num_choices=2)
        await settle()
        bench.records.away = True
        end(p, d, 0)
        assert first._ended
        end(p, d, 1)
        await settle()
        assert not last._ended
        await until(lambda: last._ended)
        bench.records.away = False
        await until(lambda: ("finish", "g") in bench.records.calls)
        await settle()
        assert state(await record_of(bench)) == (RequestState.DONE, "length", 4)


async def test_cached_tokens_count_once_for_each_prompt() -> None:
    async with started(Bench()) as bench:
        p, d = await running(bench)
        group = Group("g", 4, 2 * NUM_PROMPT)
        for choice in (1, 0, 3, 2):
            request = replace(bench.request(f"r{choice}", max_tokens=2), group=group)
            bench.door.submit(replace(request, choice=choice, prompt=choice // 2))
            end(p, d, choice, cached=[0, 32, 16, 32][choice])
        await settle()
        record = await record_of(bench)
        assert (record.num_cached_tokens, record.num_output_tokens) == (16, 8)
        assert record.request.num_prompt_tokens == 2 * NUM_PROMPT


async def test_a_client_that_leaves_before_all_choices_began_ends_the_record() -> None:
    """The first one is done, so that nothing lives that could end it."""
    async with started(Bench()) as bench:
        p, d = await running(bench)
        submit(bench, 0)
        await settle()
        end(p, d, 0)
        await settle()
        assert (await record_of(bench)).state is RequestState.LIVE
        await asyncio.gather(*(bench.door.close_record("g") for _ in range(2)))
        assert state(await record_of(bench)) == (RequestState.CANCELLED, "", 2)
        assert bench.records.calls == [("admit", "g"), ("finish", "g")]


async def test_a_choice_that_fails_names_the_end_of_all() -> None:
    async with started(Bench()) as bench:
        p, d = await running(bench)
        done, failed, left = submit(bench, 0, 1, 2, num_choices=5)
        await settle()
        end(p, d, 0)
        p.say(Refuse(Attempt("r1", 0), p.incarnation, "invalid"))
        assert done._ended and isinstance(failed.failure, AttemptError)
        left.cancel()
        assert (await record_of(bench)).state is RequestState.LIVE
        await bench.door.close_record("g")
        assert state(await record_of(bench)) == (RequestState.FAILED, "refused_by_worker", 2)
        assert bench.records.calls == [("admit", "g"), ("finish", "g")]


async def test_a_group_is_refused_once_also_its_later_choices() -> None:
    async with started(Bench()) as bench:
        await running(bench)
        bench.records.refuses = True
        early = submit(bench, 0, 1, num_choices=4)
        await settle()
        late = submit(bench, 2, num_choices=4)
        for generation in (*early, *late):
            assert isinstance(generation.failure, OverloadedError)
        assert bench.core.counters.admissions_refused == {Admission.OVER_QUOTA: 1}
        assert bench.door.status()["requests"] == {"live": 0}
        bench.requests.admit_all_again()
        await bench.door.close_record("g")
        await settle()
        assert bench.records.calls == [("admit", "g")]
        assert not bench.requests.progress()


async def test_a_tenant_s_limit_is_of_what_lives_and_not_of_what_is_written_again() -> None:
    async with started(Bench()) as bench:
        p, d = await running(bench)

        def limited(rid: str) -> Generation:
            return bench.door.submit(replace(bench.request(rid, max_tokens=2), max_live=1))

        first = limited("r0")
        await settle()
        second, other = limited("r1"), bench.door.submit(bench.request("r2"))
        await settle()
        assert isinstance(second.failure, OverloadedError) and second.failure.status == 429
        assert other.failure is None, "the limit is of whom it names"
        bench.records._stored.clear()  # Redis lost its data
        bench.requests.admit_all_again()
        await settle()
        assert first.failure is None
        end(p, d, 0)
        await until(lambda: ("finish", "r0") in bench.records.calls)
        third = limited("r3")
        await settle()
        assert third.failure is None


async def test_an_unknown_admission_is_finished_once_when_redis_is_back() -> None:
    async with started(Bench()) as bench:
        await running(bench)
        bench.records.away = True
        generations = submit(bench, 0, 1)
        await settle()
        generations += submit(bench, 2)
        for generation in generations:
            assert isinstance(generation.failure, OverloadedError) or not generation._ended
        await until(lambda: not bench.door.status()["requests"]["live"])
        assert [one.failure is not None for one in generations] == [True] * 3
        bench.records.away = False
        await until(lambda: bool(bench.records.calls))
        await settle()
        assert bench.records.calls == [("finish", "g")]
        assert state(await record_of(bench))[:2] == (RequestState.FAILED, "state_unavailable")


async def test_a_mark_is_the_sum_and_counts_no_token_twice() -> None:
    async with started(Bench()) as bench:
        p, d = await running(bench)
        submit(bench, 0, 1, num_choices=2)
        await settle()
        assert bench.requests.progress() == {"g": 0}
        end(p, d, 0)
        assert bench.requests.progress() == {"g": 2}
        bench.records.away = True
        end(p, d, 1)
        await settle()
        assert bench.door.status()["requests"] == {"live": 1}
        assert bench.requests.progress() == {"g": 4}


async def test_after_a_loss_of_data_each_request_is_admitted_once() -> None:
    async with started(Bench()) as bench:
        p, d = await running(bench)
        submit(bench, 0, 1)
        await settle()
        end(p, d, 0)
        bench.records._stored.clear()
        bench.records.calls.clear()
        bench.requests.admit_all_again()
        await settle()
        assert bench.records.calls == [("admit", "g")]
        assert (await record_of(bench)).state is RequestState.LIVE


async def test_an_admission_that_comes_after_the_end_is_ended_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Redis lost its data; what is then admitted again waits, meanwhile the request ends, and Redis
    loses its data once more."""
    async with started(Bench()) as bench:
        p, d = await running(bench)
        submit(bench, 0, num_choices=1)
        await settle()
        bench.records._stored.clear()
        admit, free = bench.records.admit, asyncio.Event()

        async def late(request: AdmittedRequest, max_live: int = 0) -> Admission | KeyTaken:
            await free.wait()
            return await admit(request, max_live)

        monkeypatch.setattr(bench.records, "admit", late)
        bench.requests.admit_all_again()
        end(p, d, 0)
        await until(lambda: ("finish", "g") in bench.records.calls)
        bench.records._stored.clear()
        free.set()
        await settle()
        assert state(await record_of(bench)) == (RequestState.DONE, "length", 2)


@pytest.mark.parametrize("first", [1, 2])
async def test_an_admission_that_is_repeated_after_a_refusal_is_ended(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis refuses writes and has lost its data; what is sent again for the loss succeeds."""
    async with started(Bench()) as bench:
        await running(bench)
        admit, num_asked = bench.records.admit, 0
        free = {1: asyncio.Event(), 2: asyncio.Event()}

        async def refused_once(request: AdmittedRequest, max_live: int = 0) -> Admission | KeyTaken:
            nonlocal num_asked
            num_asked += 1
            is_first = num_asked == 1
            await free[num_asked].wait()
            if is_first:
                raise StateRefusedError("READONLY")
            return await admit(request, max_live)

        monkeypatch.setattr(bench.records, "admit", refused_once)
        (generation,) = submit(bench, 0, num_choices=1)
        await settle()
        bench.requests.admit_all_again()
        free[first].set()
        await settle()
        free[3 - first].set()
        await until(lambda: generation.failure is not None)
        await until(lambda: ("finish", "g") in bench.records.calls)
        await settle()
        assert state(await record_of(bench)) == (RequestState.FAILED, "state_unavailable", 0)


async def test_a_gateway_that_stops_ends_a_group_that_has_not_begun_whole() -> None:
    bench = Bench()
    async with started(bench):
        await running(bench)
        submit(bench, 0, 1)
        await settle()
    assert state(await record_of(bench)) == (RequestState.FAILED, "gateway_stopping", 0)


async def test_the_first_token_of_any_choice_is_that_of_the_request() -> None:
    record = OpenRecord(AdmittedRequest("g", G_INC, "", "pool", NUM_PROMPT, 0), 3)
    for choice, ttft_s in enumerate((2.0, -1.0, 1.5)):
        request = replace(Bench().request(f"r{choice}", NUM_PROMPT, max_tokens=2), choice=choice)
        record.note_end(request, Outcome(RequestState.DONE, "stop", 1, 0, ttft_s=ttft_s))
    assert record.outcome().ttft_s == 1.5
    record.note_end(request, Outcome(RequestState.FAILED, "timeout", 0, 0))
    assert record.outcome().ttft_s == 2.0
