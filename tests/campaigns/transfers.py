"""`make transfers`: a million blocks handed over while prefill gives its blocks to somebody else
and leases end, at every point; and blocks that are damaged on their way.

Each block says in every word which one it is and how often it was used again, so a stale, foreign
or torn one is known whatever digests and tags say. With digests and tags switched off the same
campaign accepts wrong blocks: the last figure shows it.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from shared.errors import CorruptPieceError
from shared.protocol import Attempt, TokenRun
from shared.transfer.blocks.mapping import Mapping
from shared.transfer.offers import OfferTable
from tests.campaigns.figures import Figure, at_least, exactly, judge, say
from tests.support.fakes.faulty_transport import Fault
from tests.support.pairs.reuse import NUM_OFFERED, Tally, run_under_reuse
from tests.support.pairs.transfer_pair import NUM_BLOCKS, TICKET, Kind, Pair

PARTS: dict[Kind, float] = {"mapped": 0.6, "tcp": 0.3, "nixl": 0.05, "nccl": 0.05}
"""of all blocks"""
MOST_BLOCKS = NUM_OFFERED
"""of one pull"""
PULLS_AT_ONCE = 2_000
"""by one pair; then the next seed"""
BLIND_PULLS = 300
DAMAGED: tuple[Kind, ...] = ("mapped", "tcp")
NUM_DAMAGED = 1_000
"""blocks, of each kind"""


@dataclass(frozen=True)
class Size:
    """How many blocks."""

    num_blocks: int = 1_000_000
    seed: int = 1


async def hand_over(kind: Kind, num_blocks: int, seed: int) -> Tally:
    """Until that number of blocks was accepted."""
    total, begin_s = Tally(), time.monotonic()
    while total.num_blocks < num_blocks:
        async with Pair(kind) as pair:
            tally, _ = await run_under_reuse(pair, PULLS_AT_ONCE, seed, MOST_BLOCKS)
        total += tally
        seed += 1
        say(
            f"{kind}: {total.num_blocks} of {num_blocks} blocks, {total.refused} of {total.pulls} "
            f"pulls refused, {total.wrong} wrong, {time.monotonic() - begin_s:.0f} s"
        )
    return total


async def damage(kind: Kind) -> int:
    """Blocks that were damaged at each reading, and found to be."""
    num_found = 0
    async with Pair(kind) as pair:
        pair.p.plan.add("blocks", Fault.CORRUPT, times=sys.maxsize)
        for number in range(NUM_DAMAGED):
            attempt = Attempt("rid", number)
            offer = pair.p.transport.offer(attempt, TICKET)
            offer.publish(pair.p.piece(0, number % NUM_BLOCKS))
            offer.seal(TokenRun("rid", number, 0, (1,)))
            try:
                await pair.d.transport.pull(replace(pair.request(1), attempt=attempt))
            except CorruptPieceError:
                num_found += 1
                offer.withdraw()
    return num_found


@contextmanager
def blind() -> Iterator[None]:
    """Nobody asks whether a block was used again meanwhile."""
    kept = OfferTable.is_fresh, Mapping.is_fresh
    OfferTable.is_fresh = Mapping.is_fresh = lambda *_: True  # type: ignore
    try:
        yield
    finally:
        OfferTable.is_fresh, Mapping.is_fresh = kept  # type: ignore


async def run(size: Size) -> list[Figure]:
    figures: list[Figure] = []
    for kind, part in PARTS.items():
        total = await hand_over(kind, round(part * size.num_blocks), size.seed)
        figures += [
            at_least(f"{kind}: blocks accepted", total.num_blocks, round(part * size.num_blocks)),
            at_least(f"{kind}: pulls refused", total.refused, total.pulls / 5),
            exactly(f"{kind}: pulls accepted with a wrong block", total.wrong),
        ]
    for kind in DAMAGED:
        found = await damage(kind)
        figures.append(exactly(f"{kind}: damaged blocks that were found", found, NUM_DAMAGED))
    with blind():
        async with Pair("mapped") as pair:
            tally, _ = await run_under_reuse(pair, BLIND_PULLS, size.seed)
    return [*figures, at_least("wrong ones where nobody looks", tally.wrong, 1)]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=Size.num_blocks)
    parser.add_argument("--seed", type=int, default=Size.seed)
    given = parser.parse_args(arguments)
    return judge(asyncio.run(run(Size(given.blocks, given.seed))))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
