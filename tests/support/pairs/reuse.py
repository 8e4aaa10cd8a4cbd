"""Hand-overs while prefill's blocks are given to somebody else and leases end, at every point.

A block's content names the block and its generation in every word, so a stale, foreign or torn
block is recognised without trusting digests or tags.
"""

import asyncio
import random
import struct
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from shared.errors import KVTransferError
from shared.kv.layout import KVLayout
from shared.kv.memory import Piece
from shared.protocol import Attempt, TokenRun
from shared.transfer.offers import OfferState
from tests.support.fakes.faulty_transport import Fault, FaultPlan, FaultyMemoryTransport
from tests.support.pairs.transfer_pair import TICKET, Pair, Side, until

POINTS = ("watermark", "blocks", "half_read", "seal", "verify", "read")
NUM_OFFERED = 16
"""of prefill's blocks are ever offered"""


def stamped(layout: KVLayout, block_id: int, generation: int) -> bytes:
    return struct.pack("<II", block_id, generation) * (layout.block_bytes // 8)


def reuse(side: Side, block_id: int) -> None:
    generations = side.memory.generations
    generations[block_id] += 1
    side.write(block_id, stamped(side.memory.layout, block_id, generations[block_id]))


@dataclass
class ReusingPlan(FaultPlan):
    """At points chosen by the seed, prefill's engine gives a block to somebody else, or the lease
    ends and it gives all of them away."""

    prefill: Side
    rng: random.Random
    offer: Any = None
    offered: list[int] = field(default_factory=list)
    num_reused: Counter[str] = field(default_factory=Counter)
    num_ended: Counter[str] = field(default_factory=Counter)
    """leases"""

    async def strike(self, point: str) -> Fault:
        if point in POINTS and self.rng.random() < 0.07:
            self.reuse_one(point)
        if point in POINTS and self.rng.random() < 0.02:
            self.end_lease(point)
        return Fault.PASS

    def end_lease(self, point: str) -> None:
        """Of a sealed offer; others have none."""
        if self.offer.state is OfferState.SEALED:
            self.num_ended[point] += 1
            self.offer._table.drop(self.offer, OfferState.EXPIRED)
            for block_id in self.offered:
                reuse(self.prefill, block_id)

    def reuse_one(self, point: str) -> None:
        reuse(self.prefill, self.rng.choice(self.offered))
        self.num_reused[point] += 1


@dataclass
class Tally:
    accepted: int = 0
    refused: int = 0
    wrong: int = 0
    num_blocks: int = 0
    """in pulls that were accepted"""

    def __iadd__(self, other: "Tally") -> "Tally":
        self.accepted += other.accepted
        self.refused += other.refused
        self.wrong += other.wrong
        self.num_blocks += other.num_blocks
        return self

    @property
    def pulls(self) -> int:
        return self.accepted + self.refused


async def run_under_reuse(
    pair: Pair, num_pulls: int, seed: int, most_blocks: int = 5
) -> tuple[Tally, ReusingPlan]:
    """Ends when prefill has forgotten every offer. `most_blocks`: of one pull."""
    tally = Tally()
    plan = ReusingPlan(pair.p, random.Random(seed))  # noqa: S311
    for side in (pair.p, pair.d):
        _give_plan(side, plan)
    for number in range(num_pulls):
        await _pull_under_reuse(pair, plan, number, tally, most_blocks)
    await until(lambda: not pair.num_offers)
    return tally, plan


def check_all_met(tally: Tally, plan: ReusingPlan) -> None:
    """AssertionError unless pulls of both ends met re-use and ended leases at every point."""
    assert tally.refused > tally.pulls / 4
    assert tally.accepted > tally.pulls / 10
    assert set(plan.num_reused) == {*POINTS, "publish"}, "reuse really happened everywhere"
    assert set(plan.num_ended) >= {"read", "half_read", "verify"}, "leases really ended"


def _give_plan(side: Side, plan: FaultPlan) -> None:
    side.terms.plan = plan
    if isinstance(side.transport, FaultyMemoryTransport):
        side.transport.plan = plan


async def _pull_under_reuse(
    pair: Pair, plan: ReusingPlan, number: int, tally: Tally, most_blocks: int
) -> None:
    rng, generations = plan.rng, pair.p.memory.generations
    num = rng.randint(1, most_blocks)
    plan.offered = rng.sample(range(NUM_OFFERED), num)
    for block_id in plan.offered:
        reuse(pair.p, block_id)
    tags = [(block_id, generations[block_id]) for block_id in plan.offered]
    attempt = Attempt("rid", number)
    offer = plan.offer = pair.p.transport.offer(attempt, TICKET)
    split = rng.randint(0, num)
    pull = asyncio.create_task(pair.d.transport.pull(replace(pair.request(num), attempt=attempt)))
    for first, some in ((0, tags[:split]), (split, tags[split:])):
        if some:
            block_ids, offered = zip(*some, strict=True)
            offer.publish(Piece(first, block_ids, offered))
            if rng.random() < 0.1:
                plan.reuse_one("publish")
            await asyncio.sleep(0)
    offer.seal(TokenRun("rid", number, 0, (number,)))
    try:
        await pull
    except KVTransferError:
        tally.refused += 1
        offer.withdraw()
    else:
        tally.accepted += 1
        tally.num_blocks += num
        layout = pair.p.memory.layout
        tally.wrong += any(
            pair.received(logical) != stamped(layout, *tag) for logical, tag in enumerate(tags)
        )
