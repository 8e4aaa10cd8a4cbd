"""The manifest: a cell counts as published under the tag that its block has now."""

import numpy as np

from shared.kv.layer_groups import GroupRange
from shared.transfer.blocks.manifest import Manifest, Part, Publication, Tags

NUM_GROUPS = 3
ALL = GroupRange(0, NUM_GROUPS)


def publication(first: int, generations: list[int], groups: GroupRange, seed: int) -> Publication:
    """Blocks 100, 101, ...; each digest is told by `seed`, block and group."""
    ids = [100 + first + index for index in range(len(generations))]
    digests = [
        [1000 * seed + 10 * block + group for group in range(*_ends(groups))] for block in ids
    ]
    part = Part(first, len(ids), groups)
    return Publication(part, Tags.of(ids, generations), np.array(digests, np.uint64))


def _ends(groups: GroupRange) -> tuple[int, int]:
    return groups.first, groups.end


def test_it_grows_and_is_complete_without_gaps() -> None:
    manifest = Manifest(NUM_GROUPS)
    assert not manifest.complete
    manifest.put(publication(1, [0], ALL, 1))
    assert (len(manifest), manifest.complete) == (2, False)
    manifest.put(publication(0, [0], GroupRange(0, 2), 1))
    assert not manifest.complete
    manifest.put(publication(0, [0], GroupRange(2, 1), 1))
    assert manifest.complete
    whole = manifest.whole()
    assert whole.part == Part(0, 2, ALL)
    assert np.array_equal(whole.digests, publication(0, [0, 0], ALL, 1).digests)
    assert whole.tags.equal(Tags.of([100, 101], [0, 0])).all()


def test_what_changed_is_what_was_not_published_or_otherwise() -> None:
    manifest = Manifest(NUM_GROUPS)
    first = publication(0, [0, 0], GroupRange(0, 2), 1)
    assert manifest.put(first).tolist() == [[True, True, False]] * 2
    assert not manifest.put(first).any()
    damaged = first.digests.copy()
    damaged[1, 0] ^= np.uint64(1)
    again = manifest.put(Publication(first.part, first.tags, damaged))
    assert again.tolist() == [[False] * 3, [True, False, False]]


def test_under_another_tag_the_other_groups_of_a_block_count_no_more() -> None:
    manifest = Manifest(NUM_GROUPS)
    manifest.put(publication(0, [0, 0], ALL, 1))
    changed = manifest.put(publication(0, [0, 1], GroupRange(1, 1), 1))
    assert changed.tolist() == [[False] * 3, [False, True, False]]
    assert manifest.published.tolist() == [[True] * 3, [False, True, False]]
    assert manifest.put(publication(1, [1], ALL, 1)).tolist() == [[True, False, True]]


def test_a_part_is_there_when_all_of_it_is() -> None:
    manifest = Manifest(NUM_GROUPS)
    manifest.put(publication(0, [0, 0], GroupRange(0, 2), 1))
    assert manifest.has(Part(0, 2, GroupRange(0, 2)))
    assert manifest.has(Part(1, 1, GroupRange(1, 1)))
    for part in (
        Part(0, 2, ALL),
        Part(0, 3, GroupRange(0, 1)),
        Part(2**40, 1, GroupRange(0, 1)),
        Part(0, 0, GroupRange(0, 1)),
        Part(-1, 1, GroupRange(0, 1)),
        Part(-1, 2, GroupRange(0, 1)),
        Part(0, 1, GroupRange(0, 0)),
        Part(0, 1, GroupRange(-1, 1)),
        Part(0, 1, GroupRange(NUM_GROUPS, 1)),
    ):
        assert not manifest.has(part)


def test_tags_hold_while_the_pool_has_the_same_generations() -> None:
    tags, pool = Tags.of([3, 1], [7, 5]), np.array([0, 5, 0, 7], np.uint64)
    assert tags.hold(pool)
    assert tags[1:].hold(pool[:2])
    assert not tags.hold(pool[:3])
    pool[3] += np.uint64(1)
    assert not tags.hold(pool)
    assert Tags.of([], []).hold(pool)


def test_parts_of_the_same_blocks_continue_with_the_groups_that_follow() -> None:
    part = Part(4, 2, GroupRange(0, 2))
    follows = Part(4, 2, GroupRange(2, 1))
    assert part.continues_with(follows)
    assert part.joined(follows) == Part(4, 2, ALL)
    for other in (part, Part(4, 1, follows.groups), Part(5, 2, follows.groups)):
        assert not part.continues_with(other)
    assert not follows.continues_with(part)
