"""What a request used of GPUs, what its cached tokens saved, and both in USD.

Guarded against: a sum that lacks a worker, a token or a GPU and is shown as if it were whole, and
a saving by costs that nobody has measured.
"""

from dataclasses import replace
from typing import Any

import pytest

from services.gateway.owner.records.gpu_time import saved_gpu_ms, used_gpu_ms
from services.gateway.owner.records.group_receipt import group_body
from services.gateway.owner.records.receipt import AttemptNote, Receipt
from services.gateway.routes.price import priced, read_price, receipt_price
from shared.errors import RequestError
from shared.message_parts.span import Span
from shared.message_parts.step_costs import NO_COSTS, StepCosts
from shared.protocol import Assign, Fail, Pong
from shared.telemetry import attributes as names
from tests.unit.gateway.owner.gateway_bench import IDLE, Bench, FakeWorker, started, until

COSTS = StepCosts(step_s=1e-2, row_s=1e-4, chunk_token_s=2e-5, chunk_pair_s=1e-8)


def span(name: str, compute_ms: float | None, num_decoded: int = 0) -> Span:
    attributes: dict[str, Any] = {names.DECODED_TOKENS: num_decoded} if num_decoded else {}
    if compute_ms is not None:
        attributes[names.COMPUTE_MS] = compute_ms
    return Span(name, 1, 2, 7, attributes)


PREFILL = ("p0", span(names.SPAN_PREFILL, 30.0))
DECODE = ("d0", span(names.SPAN_DECODE, 12.5, num_decoded=8))
RANKS = {"p0": 2, "d0": 1}


def receipt(rid: str = "r", choice: int = 0) -> Receipt:
    """An answer of nine tokens that has ended, whose workers have told all."""
    found = Receipt(rid, "chat", 116, 1, 1, choice=choice, ranks=dict(RANKS))
    note = AttemptNote(0, "prefill", "", "", "p0", "d0", "done", first_token_ns=3)
    found.attempts.append(note)
    found.first_token_ns, found.ended_ns, found.completion_tokens = 3, 9, 9
    found.cached_tokens, found.saved_gpu_ms, found.outcome = 100, 4.101, "done"
    for worker, told in (PREFILL, ("d0", span(names.SPAN_TRANSFER, None)), DECODE):
        found.note(0, worker, told)
    return found


def test_cached_tokens_save_what_they_and_their_pairs_would_have_taken() -> None:
    """100 tokens of 20 us, 5,050 pairs of 10 ns: 2.0505 ms, on each of two GPUs."""
    assert saved_gpu_ms(COSTS, 2, 100) == 4.101
    assert saved_gpu_ms(COSTS, 2, 0) == 0.0


def test_nothing_is_saved_by_costs_that_are_not_known() -> None:
    assert saved_gpu_ms(NO_COSTS, 2, 100) is None
    assert saved_gpu_ms(COSTS, 0, 100) is None


def test_each_worker_counts_with_all_its_gpus() -> None:
    assert used_gpu_ms([PREFILL, DECODE], RANKS, 9) == 2 * 30.0 + 12.5


@pytest.mark.parametrize(
    ("told", "ranks", "num_tokens"),
    [
        ([], RANKS, 0),
        ([PREFILL, DECODE], RANKS, 10),
        ([PREFILL, DECODE], {"p0": 2, "d0": 0}, 9),
        ([PREFILL, DECODE], {"p0": 2}, 9),
        ([PREFILL, ("d0", span(names.SPAN_DECODE, None, num_decoded=8))], RANKS, 9),
    ],
    ids=["nothing told", "a token lacks", "no GPUs told", "unknown worker", "no times told"],
)
def test_what_lacks_a_part_is_not_known(
    told: list[tuple[str, Span]], ranks: dict[str, int], num_tokens: int
) -> None:
    assert used_gpu_ms(told, ranks, num_tokens) is None


def test_a_receipt_tells_both_once_it_has_ended() -> None:
    body = receipt().as_dict()
    assert (body["gpu_ms"], body["saved_gpu_ms"], body["compute_ms"]) == (72.5, 4.101, 42.5)
    living = receipt()
    living.ended_ns = 0
    assert living.as_dict()["gpu_ms"] is None
    without_token = receipt()
    without_token.first_token_ns = 0
    assert without_token.as_dict()["saved_gpu_ms"] is None


@pytest.mark.anyio
async def test_the_saving_is_that_of_the_worker_that_brought_token_1() -> None:
    """The first one had 16 tokens of the prompt cached, and died of it; the second has 32, which
    take 645.28 us on each of its four GPUs."""
    first, second = FakeWorker("prefill", "p0"), FakeWorker("prefill", "p1")
    decode = FakeWorker("decode", "d0")
    async with started(Bench()) as bench:
        await bench.add(first, second, decode)
        for worker in (first, second):
            worker.load = replace(IDLE, step_costs=COSTS)
            worker.say(Pong(1, worker.load, gauges={"worker_ranks": 4.0}))
        generation = bench.door.submit(bench.request())
        if second.all(Assign):
            first, second = second, first
        assigned = first.last(Assign)
        first.start(num_cached_tokens=16)
        first.say(Fail(assigned.work.attempt, first.incarnation, "oops", "no"))
        await until(lambda: bool(second.all(Assign)))
        second.start(num_cached_tokens=32)
        second.tokens(0, 10)
        body = bench.door.receipt(generation.rid)
    assert body is not None
    assert (body["cached_tokens"], body["saved_gpu_ms"], body["gpu_ms"]) == (32, 2.581, None)


def test_a_group_has_the_sums_of_what_its_members_know() -> None:
    """Prompts count once, as their cached tokens do."""
    members = [receipt(f"r{choice}", choice).as_dict() for choice in range(2)]
    body = group_body("g", members)
    assert (body["gpu_ms"], body["saved_gpu_ms"]) == (145.0, 4.101)
    assert group_body("g", [members[0], members[1] | {"gpu_ms": None}])["gpu_ms"] is None


def test_a_price_makes_usd_of_both() -> None:
    """3.6 USD an hour are a millionth of a USD for a millisecond."""
    body = priced(receipt().as_dict(), 3.6)
    assert (body["usd"], body["saved_usd"]) == (7.25e-05, 4.101e-06)
    assert body["gpu_ms"] == 72.5


def test_what_is_not_known_costs_null() -> None:
    unknown = receipt().as_dict() | {"gpu_ms": None, "saved_gpu_ms": None}
    of_an_earlier_release = {"id": "r"}
    for body in (priced(unknown, 3.6), priced(of_an_earlier_release, 3.6)):
        assert (body["usd"], body["saved_usd"]) == (None, None)


def test_the_query_of_a_receipt_has_one_price_or_nothing() -> None:
    assert receipt_price([]) is None
    assert receipt_price([("usd_per_gpu_hour", "2.5")]) == read_price("2.5") == 2.5


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ([("usd_per_gpu_hour", "0")], "usd_per_gpu_hour"),
        ([("usd_per_gpu_hour", "inf")], "usd_per_gpu_hour"),
        ([("usd_per_gpu_hour", "")], "usd_per_gpu_hour"),
        ([("usd_per_gpu_hour", "1"), ("usd_per_gpu_hour", "2")], "usd_per_gpu_hour"),
        ([("price", "1")], "price"),
    ],
)
def test_a_bad_query_of_a_receipt_is_refused_by_name(
    query: list[tuple[str, str]], param: str
) -> None:
    with pytest.raises(RequestError) as refused:
        receipt_price(query)
    assert (refused.value.status, refused.value.param) == (400, param)
