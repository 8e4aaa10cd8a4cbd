"""Conversations next to a batch of documents: whose prefixes the cache keeps.

Guarded against: a batch that makes conversations be computed again, and conversations that leave a
batch nothing of what its requests have in common.
"""

import random
from array import array

from shared.engine.scheduling.block_pool import NO_PARENT, BlockPool
from shared.kv.block_hash import chain_hashes
from tests.support.measured import Measured

BLOCK_SIZE = 16
NUM_BLOCKS = 4000
NUM_CONVERSATIONS, NUM_REQUESTS = 40, 2000
SYSTEM, INSTRUCTION = [2] * 256, [1] * 128
DOCUMENT_TOKENS, TURN_TOKENS, LONGEST = 1000, 75, 1500


class Cache:
    """The share of the blocks asked for that are found, of each kind of work."""

    def __init__(self) -> None:
        self.pool = BlockPool(NUM_BLOCKS, BLOCK_SIZE, array("Q", [0] * NUM_BLOCKS))
        self.found = {False: 0, True: 0}
        self.asked = {False: 0, True: 0}

    def serve(self, token_ids: list[int], *, bulk: bool, told: bool) -> None:
        """One prompt. `told`: the pool knows which work is bulk."""
        pool, hashes = self.pool, chain_hashes(bytes(32), token_ids, BLOCK_SIZE)
        table = pool.match(hashes)
        self.found[bulk] += len(table)
        self.asked[bulk] += len(hashes)
        pool.acquire(table, bulk=bulk and told)
        for block_hash in hashes[len(table) :]:
            parent = table[-1] if table else NO_PARENT
            (block,) = pool.allocate(1)
            table.append(pool.register(block, block_hash, parent, bulk=bulk and told))
        pool.free(table)

    def hit_rate(self, *, bulk: bool) -> float:
        return self.found[bulk] / max(1, self.asked[bulk])


def served(*, bulk_share: float, told: bool = True) -> Cache:
    dice, cache = random.Random(1), Cache()  # noqa: S311
    conversations: list[list[int]] = [[] for _ in range(NUM_CONVERSATIONS)]
    for number in range(10, NUM_REQUESTS):
        if dice.random() < bulk_share:
            cache.serve([*INSTRUCTION, *[number] * DOCUMENT_TOKENS], bulk=True, told=told)
            continue
        token_ids = dice.choice(conversations)
        if len(token_ids) > LONGEST:
            token_ids.clear()
        token_ids += [number] * TURN_TOKENS if token_ids else [*SYSTEM, number]
        cache.serve(token_ids, bulk=False, told=told)
    return cache


def test_conversations_keep_their_prefixes_and_a_batch_its_own(measured: Measured) -> None:
    alone = served(bulk_share=0.0).hit_rate(bulk=False)
    untold, told = served(bulk_share=0.6, told=False), served(bulk_share=0.6)
    measured.note(f"hits of conversations alone: {alone:.3f}")
    measured.note(f"next to a batch that nobody tells apart: {untold.hit_rate(bulk=False):.3f}")
    measured.at_most("hits lost to a batch", alone - told.hit_rate(bulk=False), 0.05)
    assert untold.hit_rate(bulk=False) < alone - 0.2, "the batch is too small to show anything"
    in_common = len(INSTRUCTION) / (len(INSTRUCTION) + DOCUMENT_TOKENS)
    assert 0.98 * in_common < told.hit_rate(bulk=True) < 1.02 * in_common
