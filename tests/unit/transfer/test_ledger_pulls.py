"""Random pulls: a ledger is complete exactly when every cell holds the sealed content."""

import random
from collections import deque
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.kv.columns import Words
from shared.kv.layer_groups import GroupRange, LayerGroups
from shared.transfer.blocks.ledger import PullLedger, Versions
from shared.transfer.blocks.manifest import Part, Publication, Tags

THREE = LayerGroups((1, 3, 4), 10)
"""groups of 10, 20 and 10 bytes"""


def part(first: int, num_blocks: int, first_group: int = 0, num_groups: int = 1) -> Part:
    return Part(first, num_blocks, GroupRange(first_group, num_groups))


def plain(tags: Tags) -> list[tuple[int, int]]:
    return list(zip(tags.block_ids.tolist(), tags.generations.tolist(), strict=True))


class Running(NamedTuple):
    """A read that will end."""

    part: Part
    versions: Versions
    tags: Tags
    digests: Words


class Source:
    """A prompt whose blocks are written again now and then. What a cell holds is told by its
    block's tag and its group; so is its digest."""

    def __init__(self, num_blocks: int, rng: random.Random) -> None:
        self.tags = Tags.of(range(num_blocks), [0] * num_blocks)
        self._rng = rng

    def rewrite(self, block: int) -> None:
        """In another place, with another generation, both, or seldom neither."""
        self.tags.block_ids[block] = self._rng.randint(0, 9)
        self.tags.generations[block] += np.uint64(self._rng.randint(0, 1))

    def content(self, part: Part) -> Words:
        rows, _ = part.cells
        tags = self.tags[rows]
        blocks = tags.block_ids.astype(np.uint64) + np.uint64(100) * tags.generations
        groups = np.arange(part.groups.first, part.groups.end, dtype=np.uint64)
        return np.uint64(1) + blocks[:, None] * np.uint64(10) + groups

    def publication(self, part: Part) -> Publication:
        rows, _ = part.cells
        sent = Tags(self.tags.block_ids[rows].copy(), self.tags.generations[rows].copy())
        return Publication(part, sent, self.content(part))


def random_part(rng: random.Random, num_blocks: int) -> Part:
    first, first_group = rng.randrange(num_blocks), rng.randrange(len(THREE))
    return part(
        first,
        rng.randint(1, num_blocks - first),
        first_group,
        rng.randint(1, len(THREE) - first_group),
    )


def random_pull_is_consistent(ledger_type: type[PullLedger], seed: int) -> bool:
    """A source that rewrites blocks and publishes some of their groups again at random, reads that
    arrive late, damaged or under another tag. False when the ledger calls complete what does not
    hold the sealed content."""
    rng = random.Random(seed)  # noqa: S311
    num = rng.randint(1, 5)
    present = rng.randint(0, min(2, num))
    ledger = ledger_type(num, present, THREE)
    source = Source(num, rng)
    destination: Words = np.zeros((num, len(THREE)), np.uint64)
    running: deque[Running] = deque()
    num_publications = rng.randint(1, 8)
    while not ledger.idle:
        if num_publications and rng.random() < 0.3:
            num_publications -= 1
            wanted = random_part(rng, num)
            if rng.random() < 0.5:
                source.rewrite(wanted.first_block)
            ledger.publish(source.publication(wanted))
        elif not num_publications and not ledger.sealed:
            whole = source.publication(part(0, num, 0, len(THREE)))
            ledger.seal(whole.tags, whole.digests)
        elif (
            wanted_now := ledger.next_read(rng.randint(1, 120), joined=rng.random() < 0.5)
        ) is not None:
            versions = ledger.begin(wanted_now)
            sent = source.publication(wanted_now)
            is_damaged = rng.random() < 0.1
            destination[wanted_now.cells] = np.uint64(0) if is_damaged else sent.digests
            digests = destination[wanted_now.cells].copy()
            running.append(Running(wanted_now, versions, sent.tags, digests))
        elif running:
            running.rotate(rng.randrange(len(running)))
            ledger.finish(*running.popleft())
    if not ledger.complete:
        return True
    sealed = source.publication(part(present, num - present, 0, len(THREE)))
    holds_all = bool((destination[present:] == sealed.digests).all())
    return holds_all and plain(ledger.tags()) == plain(sealed.tags)


@settings(max_examples=300)
@given(st.integers(0, 2**32))
def test_complete_means_that_every_cell_holds_the_sealed_content(seed: int) -> None:
    assert random_pull_is_consistent(PullLedger, seed)


class BlindToOverwriting(PullLedger):
    """Trusts a digest whose cell has been overwritten since."""

    def finish(self, part: Part, versions: Versions, tags: Tags, digests: Words) -> None:
        super().finish(part, self._versions[part.cells].copy(), tags, digests)


class BlindToTags(PullLedger):
    """Believes that every read came under the published tag and undamaged."""

    def finish(self, part: Part, versions: Versions, tags: Tags, digests: Words) -> None:
        published = self._manifest.digests[part.cells]
        super().finish(part, versions, self.tags_of(part), published)


class BlindToGroups(PullLedger):
    """Holds a block as soon as it holds one of its groups."""

    def finish(self, part: Part, versions: Versions, tags: Tags, digests: Words) -> None:
        super().finish(part, versions, tags, digests)
        self._held |= self._held.any(1, keepdims=True)


@pytest.mark.parametrize("mutant", [BlindToOverwriting, BlindToTags, BlindToGroups])
def test_the_random_pulls_find_a_ledger_that_is_blind(mutant: type[PullLedger]) -> None:
    assert not all(random_pull_is_consistent(mutant, seed) for seed in range(3000))
