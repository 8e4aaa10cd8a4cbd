"""Ranks read their heads out of the pools of another worker's ranks, whatever the numbers of both,
against slices."""

import itertools
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest

from shared.errors import CorruptPieceError, PeerLostError
from shared.kv.digest import BlockDigests, digest_of
from shared.kv.layer_groups import GroupRange, layer_groups
from shared.kv.layout import KVLayout
from shared.kv.share import KVShare
from shared.mover.agent import pack_cards, unpack_cards
from shared.mover.first_tokens import FirstTokens
from shared.mover.rank_movers import RankMovers
from shared.protocol import Attempt
from tests.support.fakes.local_agent import LocalAgent
from tests.support.pairs.rank_pools import RankPools

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]
LAYOUT = KVLayout("m", "float16", 5, 2, 8, 12, 4)
NUM_BLOCKS = 6
ATTEMPT = Attempt("r", 0)
THEIRS, OURS = (5, 0, 1), (3, 2, 4)


@asynccontextmanager
async def ranks(num_heads: int, size: int) -> AsyncIterator[tuple[RankPools, RankMovers]]:
    pools = RankPools(replace(LAYOUT, num_kv_heads=num_heads), NUM_BLOCKS, 0, size)
    movers = pools.start_movers(None, FirstTokens(lambda: None), LocalAgent)
    yield pools, movers
    movers.close()


@pytest.mark.parametrize("num_heads", [1, 2, 8])
@pytest.mark.parametrize(("owning", "taking"), list(itertools.product((1, 2, 4, 8), repeat=2)))
async def test_every_rank_reads_its_own_heads(num_heads: int, owning: int, taking: int) -> None:
    async with (
        ranks(num_heads, owning) as (source, theirs),
        ranks(num_heads, taking) as (pools, ours),
    ):
        layout = source.host.layout
        blocks = np.random.default_rng(1).integers(
            0, 256, (NUM_BLOCKS, layout.block_bytes), np.uint8
        )
        for block_id, block in enumerate(blocks):
            source.write(block_id, block.tobytes())
        await ours.join("d.1", "p.1", NUM_BLOCKS, await theirs.show("p.1"))
        probe = np.frombuffer(source.pools[0].probe, np.uint8)
        assert (await ours.probe("p.1")).digest == digest_of(probe)
        whole, everything = KVShare(layout), layer_groups(layout).all
        first, rest = GroupRange(0, 1), GroupRange(1, everything.num - 1)
        for groups in (everything, first, rest):
            for block_id in OURS:
                pools.write(block_id, bytes(layout.block_bytes))
            found = await ours.fetch(ATTEMPT, "p.1", THEIRS, OURS, groups)
            wanted = BlockDigests(blocks, whole).of(THEIRS, groups)
            assert np.array_equal(found, wanted)
            span = whole.groups.span(groups)
            expected = np.zeros_like(blocks)
            expected[list(OURS), span] = blocks[list(THEIRS), span]
            assert [pools.read(block_id) for block_id in range(NUM_BLOCKS)] == [
                block.tobytes() for block in expected
            ]
        await ours.unmap("p.1")
        with pytest.raises(CorruptPieceError, match="is not mapped"):
            await ours.fetch(ATTEMPT, "p.1", THEIRS, OURS, everything)


async def test_a_pool_of_one_rank_that_reads_otherwise_is_seen() -> None:
    async with ranks(4, 4) as (source, theirs), ranks(4, 2) as (_, ours):
        source.pools[3].probe[:] = os.urandom(len(source.pools[3].probe))
        await ours.join("d.1", "p.1", NUM_BLOCKS, await theirs.show("p.1"))
        probe = np.frombuffer(source.pools[0].probe, np.uint8)
        assert (await ours.probe("p.1")).digest != digest_of(probe)


async def test_a_source_that_one_rank_cannot_join_is_joined_once_that_is_mended() -> None:
    async with ranks(4, 2) as (_, theirs), ranks(4, 2) as (_, ours):
        right = await theirs.show("p.1")
        first, _ = unpack_cards(right)
        with pytest.raises(PeerLostError, match="not one of a pool like ours"):
            await ours.join("d.1", "p.1", NUM_BLOCKS, pack_cards([first, first]))
        await ours.unmap("p.1")
        await ours.join("d.1", "p.1", NUM_BLOCKS, right)
