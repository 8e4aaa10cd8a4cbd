"""What gateways noted of their requests, held against what the protocol allows.

An answer may be right although something went wrong on its way: an epoch that was counted twice, a
worker that handed over to itself, a request that ended twice. Its receipt tells.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

from services.cli.chaos.cell import Gateway
from services.cli.gateway_client import GatewayClient
from shared.errors import BatonError

OUTCOMES = "done", "failed", "cancelled"
STEPS = "queued_ns", "assigned_ns", "started_ns", "first_token_ns", "ended_ns"
"""of an attempt, in the order in which they happen; 0: did not"""
CAUSES = frozenset(
    {
        "link_lost",
        "stalled",
        "engine_died",
        "source_lost",
        "kv_transfer",
        "inconsistent",
        "invalid_tokens",
        "refused",
        "refused_no_room",
        "refused_draining",
        "refused_incarnation",
        "handback_kv_pressure",
        "handback_draining",
        "handback_killed",
        "handback_engine_died",
        "handback_no_reader",
        "moved",
    }
)
"""why another attempt took the place of one: the table of `services/gateway/README.md`"""
NUM_KEPT = 1000
"""receipts, by a gateway"""
TIMEOUT_S = 10.0

Receipt = Mapping[str, Any]


class Histories:
    """Of all requests that the gateways still knew when nobody asked anything."""

    def __init__(self, gateways: Sequence[Gateway]) -> None:
        self._gateways = gateways
        self._read: set[str] = set()

    def __len__(self) -> int:
        """How many were read."""
        return len(self._read)

    async def read(self) -> list[str]:
        """Those that are new; what the protocol does not allow, in words."""
        found = [
            await asyncio.to_thread(self._read_from, gateway.admin_url)
            for gateway in self._gateways
        ]
        return [text for texts in found for text in texts]

    def _read_from(self, url: str) -> list[str]:
        client = GatewayClient(url, timeout_s=TIMEOUT_S)
        rows: list[dict[str, Any]] = []
        with suppress(BatonError, OSError):  # one that does not answer is not whole: that is told
            rows = client.last_requests(NUM_KEPT)
        found: list[str] = []
        for rid in (row["id"] for row in rows if row["id"] not in self._read):
            try:
                texts = list(breaches(client.receipt(rid)))
            except (BatonError, OSError) as error:
                texts = [f"cannot be read: {error}"]
            else:
                self._read.add(rid)
            found += [f"history of {rid}: {text}" for text in texts]
        return found


def breaches(receipt: Receipt) -> Iterator[str]:
    """Of a request that has ended; nothing if its history may be."""
    attempts = receipt["attempts"]
    epochs = [one["epoch"] for one in attempts]
    if epochs != list(range(len(epochs))):
        yield f"epochs {epochs}: each begins once, after the one before it"
    for one in attempts:
        yield from (f"epoch {one['epoch']}: {text}" for text in _of_attempt(one))
    for before, after in pairwise(attempts):
        yield from (f"epoch {after['epoch']}: {text}" for text in _between(before, after))
    yield from _of_end(receipt, attempts)


def _of_attempt(one: Receipt) -> Iterator[str]:
    times = [one[step] for step in STEPS if one[step]]
    if times != sorted(times):
        yield "its steps are out of order"
    if not one["prefill"] or not one["assigned_ns"]:
        yield "it was given to nobody"
    if one["mode"] == "local" and (one["decode"] != one["prefill"] or not one["reason"]):
        yield "one worker does it all, and another decodes, or nothing says why"
    if one["mode"] == "prefill" and (one["decode"] == one["prefill"] or one["reason"]):
        yield "it is handed over, and to its own prefill worker, or something says why not"


def _between(before: Receipt, after: Receipt) -> Iterator[str]:
    if before["end"] not in CAUSES:
        yield f"the one before it ended with {before['end'] or 'nothing'}"
    if after["queued_ns"] != before["ended_ns"]:
        yield "it did not begin when the one before it ended"


def _of_end(receipt: Receipt, attempts: Sequence[Receipt]) -> Iterator[str]:
    state, num_tokens = receipt["state"], receipt["completion_tokens"]
    if state not in OUTCOMES or not receipt["ended_ns"]:
        yield f"it ended as {state}"
    firsts = [one["first_token_ns"] for one in attempts if one["first_token_ns"]]
    if receipt["first_token_ns"] != next(iter(firsts), 0):
        yield "its first token is not that of the first attempt that had one"
    if num_tokens and not firsts:
        yield f"{num_tokens} tokens, and no first one"
    if attempts and attempts[-1]["end"] not in (state, *CAUSES):
        yield f"it is {state}, and its last attempt {attempts[-1]['end'] or 'has no end'}"
    if num_tokens > len(attempts) and not any(one["decode"] for one in attempts):
        yield "prefill wrote more than one token"
    if state == "failed" and not receipt["code"]:
        yield "it failed, and nothing says of what"
    if state == "done":
        yield from _of_done(receipt, attempts)


def _of_done(receipt: Receipt, attempts: Sequence[Receipt]) -> Iterator[str]:
    last = attempts[-1]["end"] if attempts else ""
    if last != "done" or not receipt["finish_reason"]:
        yield f"it is done, and its last attempt ended with {last or 'nothing'}"
