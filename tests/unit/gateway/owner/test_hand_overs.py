"""Pairs of workers in the gateway's status: each has its account, and there is an end of them."""

from services.gateway.owner.records.hand_overs import MAX_PAIRS, HandOvers
from shared.message_parts.span import Span
from shared.telemetry import attributes as names


def span(num_bytes: int, transport: str) -> Span:
    told: dict[str, str | int | float | bool] = {
        names.TRANSFER_BYTES: num_bytes,
        names.TRANSFER_TRANSPORT: transport,
    }
    return Span(names.SPAN_TRANSFER, 1, 2, 3, told)


def test_a_pair_adds_up_and_shows_its_latest_transport() -> None:
    account = HandOvers()
    account.note("p1", "d", span(10, "mapped"))
    account.note("p0", "d", span(7, "mapped"))
    account.note("p1", "d", span(20, "tcp"))
    told = [(e["prefill"], e["num"], e["bytes"], e["transport"]) for e in account.status()]
    assert told == [("p0", 1, 7, "mapped"), ("p1", 2, 30, "tcp")]


def test_a_rate_is_that_of_the_latest_that_kept_the_link_full() -> None:
    account = HandOvers()
    rates = []
    for rate in (None, 2.5, None, 3.5):
        pulled = span(10, "tcp")
        if rate is not None:
            pulled.attributes[names.TRANSFER_LINK_GBPS] = rate
        account.note("p", "d", pulled)
        rates.append(account.status()[0]["gb_per_s"])
    assert rates == [None, 2.5, 2.5, 3.5]


def test_until_then_it_is_that_of_all_bytes_while_they_were_awaited() -> None:
    account = HandOvers()
    for num_bytes, busy_ms in ((3_000_000, 2.0), (1_000_000, 2.0)):
        pulled = span(num_bytes, "tcp")
        pulled.attributes[names.TRANSFER_BUSY_MS] = busy_ms
        account.note("p", "d", pulled)
        account.note("p", "d", span(10**9, "tcp"))
    assert account.status()[0]["gb_per_s"] == 1.0


def test_the_pair_longest_unused_is_forgotten() -> None:
    account = HandOvers()
    for number in range(MAX_PAIRS):
        account.note(f"p{number}", "d", span(1, "tcp"))
    account.note("p0", "d", span(1, "tcp"))
    account.note("new", "d", span(1, "tcp"))
    left = {entry["prefill"] for entry in account.status()}
    assert len(left) == MAX_PAIRS and {"p0", "new"} <= left and "p1" not in left
