"""The ledger of a pull: complete exactly when every layer group of every block is held under the
sealed tag."""

import numpy as np
import pytest

from shared.errors import ProtocolError
from shared.kv.columns import Words
from shared.kv.layer_groups import GroupRange, LayerGroups
from shared.transfer.blocks.ledger import MAX_READS_PER_TAG, PullLedger
from shared.transfer.blocks.manifest import Part, Publication, Tags

ONE = LayerGroups((4,), 2)
"""one group: a block is a cell of 8 bytes"""
THREE = LayerGroups((1, 3, 4), 10)
"""groups of 10, 20 and 10 bytes"""


def tags(*generations: int, first: int = 0) -> Tags:
    """Of blocks that lie at 100, 101, ... with these generations."""
    return Tags.of([100 + first + index for index in range(len(generations))], generations)


def words(*digests: int, num_groups: int = 1) -> Words:
    """A row per block."""
    return np.array(digests, np.uint64).reshape(-1, num_groups)


def publish(
    ledger: PullLedger, first: int, tags: Tags, digests: Words, first_group: int = 0
) -> None:
    part = Part(first, len(tags), GroupRange(first_group, digests.shape[1]))
    ledger.publish(Publication(part, tags, digests))


def part(first: int, num_blocks: int, first_group: int = 0, num_groups: int = 1) -> Part:
    return Part(first, num_blocks, GroupRange(first_group, num_groups))


def read(ledger: PullLedger, part: Part, sent: Tags, digests: Words) -> None:
    ledger.finish(part, ledger.begin(part), sent, digests)


def plain(tags: Tags) -> list[tuple[int, int]]:
    return list(zip(tags.block_ids.tolist(), tags.generations.tolist(), strict=True))


def test_pieces_are_read_as_they_come_and_complete_after_seal() -> None:
    ledger = PullLedger(3, 0, ONE)
    publish(ledger, 0, tags(1, 1), words(10, 11))
    assert ledger.next_read(64) == part(0, 2)
    assert ledger.next_read(64) is None
    read(ledger, part(0, 2), tags(1, 1), words(10, 11))
    publish(ledger, 2, tags(1, first=2), words(12))
    ledger.seal(tags(1, 1, 1), words(10, 11, 12))
    assert not ledger.complete
    assert ledger.next_read(64) == part(2, 1)
    assert not ledger.idle
    read(ledger, part(2, 1), tags(1, first=2), words(12))
    assert ledger.complete
    assert (ledger.num_reread, ledger.num_read_blocks) == (0, 3)


def test_reads_are_capped_by_bytes_and_stay_in_order() -> None:
    ledger = PullLedger(5, 0, ONE)
    publish(ledger, 0, tags(1, 1, 1, 1, 1), words(*range(5)))
    reads = [ledger.next_read(max_bytes) for max_bytes in (16, 23, 1, 16)]
    assert reads == [part(0, 2), part(2, 2), part(4, 1), None]


def test_a_capped_read_has_all_of_its_groups() -> None:
    ledger = PullLedger(3, 0, THREE)
    publish(ledger, 0, tags(1, 1, 1), words(*range(6), num_groups=2), first_group=1)
    cut = [ledger.next_read(max_bytes) for max_bytes in (65, 29, 30)]
    assert cut == [part(0, 2, 1, 2), part(2, 1, 1, 2), None]


def test_groups_published_one_after_the_other_are_read_together() -> None:
    ledger = PullLedger(2, 0, THREE)
    publish(ledger, 0, tags(1, 1), words(1, 2))
    publish(ledger, 0, tags(1, 1), words(3, 4), first_group=1)
    assert ledger.next_read(1000, joined=True) == part(0, 2, 0, 2)
    publish(ledger, 0, tags(1, 1), words(5, 6), first_group=2)
    assert ledger.next_read(1000, joined=True) == part(0, 2, 2, 1)


def test_what_lies_elsewhere_is_read_by_itself() -> None:
    ledger = PullLedger(3, 0, THREE)
    publish(ledger, 0, tags(1, 1), words(1, 2))
    publish(ledger, 0, tags(1, 1), words(3, 4), first_group=2)
    publish(ledger, 1, tags(1, 1, first=1), words(5, 6), first_group=1)
    assert [ledger.next_read(1000, joined=True) for _ in range(4)] == [
        part(0, 2),
        part(0, 2, 2),
        part(1, 2, 1),
        None,
    ]


def test_a_block_counts_when_all_of_its_groups_are_held() -> None:
    ledger = PullLedger(1, 0, THREE)
    for group, digest in enumerate((7, 8, 9)):
        publish(ledger, 0, tags(1), words(digest), first_group=group)
    ledger.seal(tags(1), words(7, 8, 9, num_groups=3))
    assert ledger.next_read(1000, joined=True) == part(0, 1, 0, 3)
    read(ledger, part(0, 1, 0, 3), tags(1), words(7, 99, 9, num_groups=3))
    assert not ledger.complete
    assert ledger.next_read(1000, joined=True) == part(0, 1, 1), (
        "only what is damaged is read again"
    )
    read(ledger, part(0, 1, 1), tags(1), words(8))
    assert ledger.complete
    assert (ledger.num_reread, ledger.num_read_blocks) == (1, 1)


def test_under_another_tag_groups_that_are_not_published_again_are_not_held() -> None:
    ledger = PullLedger(2, 0, THREE)
    publish(ledger, 0, tags(1, 1), words(*range(6), num_groups=3))
    ledger.next_read(1000)
    read(ledger, part(0, 2, 0, 3), tags(1, 1), words(*range(6), num_groups=3))
    publish(ledger, 1, tags(2, first=1), words(30))
    assert ledger.next_read(1000, joined=True) == part(1, 1)
    read(ledger, part(1, 1), tags(2, first=1), words(30))
    assert ledger.next_read(1000, joined=True) is None, (
        "groups that are not published are not wanted"
    )
    ledger.seal(tags(1, 2), words(0, 1, 2, 30, 4, 5, num_groups=3))
    assert not ledger.complete
    assert ledger.next_read(1000, joined=True) == part(1, 1, 1, 2)
    read(ledger, part(1, 1, 1, 2), tags(2, first=1), words(4, 5, num_groups=2))
    assert ledger.complete


def test_present_blocks_are_not_read_and_not_verified() -> None:
    ledger = PullLedger(3, 2, THREE)
    digests = words(*range(9), num_groups=3)
    publish(ledger, 0, tags(1, 1, 1), digests)
    assert ledger.next_read(1000, joined=True) == part(2, 1, 0, 3)
    read(ledger, part(2, 1, 0, 3), tags(1, first=2), digests[2:])
    ledger.seal(tags(1, 1, 1), digests)
    assert ledger.complete
    assert plain(ledger.tags()) == [(102, 1)]


def test_all_present_is_complete_at_seal() -> None:
    ledger = PullLedger(2, 2, ONE)
    assert not ledger.complete
    ledger.seal(tags(4, 4), words(0, 0))
    assert ledger.complete
    assert plain(ledger.tags()) == []


def test_a_tag_that_differs_from_the_manifest_is_read_again() -> None:
    ledger = PullLedger(2, 0, ONE)
    publish(ledger, 0, tags(1, 1), words(10, 11))
    ledger.next_read(64)
    read(ledger, part(0, 2), tags(1, 1), words(10, 11))
    ledger.seal(tags(1, 2), words(10, 21))
    assert not ledger.complete
    assert ledger.next_read(64) == part(1, 1)
    assert plain(ledger.tags_of(part(1, 1))) == [(101, 2)]
    read(ledger, part(1, 1), tags(2, first=1), words(21))
    assert ledger.complete
    assert ledger.num_reread == 1


def test_a_read_in_flight_under_an_old_tag_does_not_count() -> None:
    ledger = PullLedger(1, 0, ONE)
    publish(ledger, 0, tags(1), words(10))
    blocks = ledger.next_read(64)
    assert blocks is not None
    versions, old = ledger.begin(blocks), ledger.tags_of(blocks)
    ledger.seal(tags(2), words(20))
    assert plain(old) == [(100, 1)], "what was asked for does not change"
    ledger.finish(blocks, versions, old, words(10))
    assert not ledger.idle
    assert ledger.next_read(64) == blocks
    read(ledger, blocks, tags(2), words(20))
    assert ledger.complete


def test_bytes_overwritten_after_their_digest_was_taken_do_not_count() -> None:
    ledger = PullLedger(1, 0, ONE)
    publish(ledger, 0, tags(1), words(10))
    ledger.next_read(64)
    old = ledger.begin(part(0, 1))
    publish(ledger, 0, tags(2), words(20))
    publish(ledger, 0, tags(1), words(10))
    new = ledger.begin(part(0, 1))
    ledger.seal(tags(1), words(10))
    ledger.finish(part(0, 1), old, tags(1), words(10))
    assert not ledger.complete
    ledger.finish(part(0, 1), new, tags(1), words(10))
    assert not ledger.complete, "one more read is queued and would overwrite the block"
    assert ledger.next_read(64) == part(0, 1)
    read(ledger, part(0, 1), tags(1), words(10))
    assert ledger.complete


def test_damage_is_read_again_and_given_up_after_a_few_times() -> None:
    ledger = PullLedger(1, 0, ONE)
    publish(ledger, 0, tags(1), words(10))
    ledger.seal(tags(1), words(10))
    for _ in range(MAX_READS_PER_TAG):
        assert not ledger.idle
        blocks = ledger.next_read(64)
        assert blocks is not None
        read(ledger, blocks, tags(1), words(99))
    assert ledger.idle
    assert not ledger.complete


def test_what_was_given_up_before_seal_is_tried_again_at_seal() -> None:
    ledger = PullLedger(1, 0, ONE)
    publish(ledger, 0, tags(1), words(10))
    while blocks := ledger.next_read(64):
        read(ledger, blocks, tags(1), words(99))
    assert not ledger.idle
    ledger.seal(tags(1), words(10))
    assert ledger.next_read(64) == part(0, 1)
    read(ledger, part(0, 1), tags(1), words(10))
    assert ledger.complete


def test_under_another_tag_damage_is_read_again_as_often() -> None:
    ledger = PullLedger(1, 0, ONE)
    publish(ledger, 0, tags(1), words(10))
    while blocks := ledger.next_read(64):
        read(ledger, blocks, tags(1), words(99))
    publish(ledger, 0, tags(2), words(20))
    for _ in range(MAX_READS_PER_TAG):
        assert ledger.next_read(64) == part(0, 1)
        read(ledger, part(0, 1), tags(2), words(99))
    assert ledger.next_read(64) is None


def test_what_was_held_and_is_overwritten_with_damage_is_not_held() -> None:
    ledger = PullLedger(1, 0, ONE)
    for generation in (1, 2, 1):
        publish(ledger, 0, tags(generation), words(10 * generation))
    ledger.seal(tags(1), words(10))
    ledger.next_read(64)
    read(ledger, part(0, 1), tags(1), words(10))
    while blocks := ledger.next_read(64):
        read(ledger, blocks, tags(1), words(99))
    assert ledger.idle
    assert not ledger.complete


def test_the_same_piece_twice_is_read_once() -> None:
    ledger = PullLedger(2, 0, THREE)
    for _ in range(3):
        publish(ledger, 0, tags(1, 1), words(*range(6), num_groups=3))
    assert ledger.next_read(1000, joined=True) == part(0, 2, 0, 3)
    assert ledger.next_read(1000, joined=True) is None


@pytest.mark.parametrize(
    ("first", "num_blocks", "first_group", "num_groups"),
    [(1, 2, 0, 3), (-1, 1, 0, 3), (2**40, 1, 0, 1), (0, 1, 1, 3), (0, 1, -1, 1), (0, 1, 0, 0)],
)
def test_what_the_prompt_or_the_model_does_not_have_is_refused(
    first: int, num_blocks: int, first_group: int, num_groups: int
) -> None:
    ledger = PullLedger(2, 0, THREE)
    digests = np.zeros((num_blocks, num_groups), np.uint64)
    with pytest.raises(ProtocolError, match="does not have"):
        publish(ledger, first, tags(*[1] * num_blocks), digests, first_group)
    assert ledger.next_read(1000, joined=True) is None


def test_a_manifest_of_another_size_is_refused() -> None:
    ledger = PullLedger(2, 0, THREE)
    with pytest.raises(ProtocolError, match="1 blocks of a 2 block prompt"):
        ledger.seal(tags(1), words(0, 0, 0, num_groups=3))
    with pytest.raises(ProtocolError, match="2 of 3 layer groups"):
        ledger.seal(tags(1, 1), words(0, 0, 0, 0, num_groups=2))
    assert not ledger.sealed


def test_what_is_published_is_counted_in_bytes() -> None:
    ledger = PullLedger(2, 1, THREE)
    assert ledger.num_bytes == 80
    publish(ledger, 0, tags(1, 1), words(1, 2, 3, 4, num_groups=2))
    assert ledger.num_published_bytes == 60
    publish(ledger, 0, tags(1, 1), words(5, 6), first_group=2)
    assert ledger.num_published_bytes == 80
    publish(ledger, 1, tags(2, first=1), words(7))
    assert ledger.num_published_bytes == 50


def test_it_nears_its_end_with_most_groups_of_the_last_block() -> None:
    ledger = PullLedger(2, 0, THREE)
    assert not ledger.nears_end
    publish(ledger, 0, tags(1), words(1, 2, 3, num_groups=3))
    publish(ledger, 1, tags(1, first=1), words(1))
    assert not ledger.nears_end
    publish(ledger, 1, tags(1, first=1), words(2), first_group=1)
    assert ledger.nears_end
    assert not PullLedger(0, 0, THREE).nears_end


def test_a_read_is_the_last_if_everything_else_is_held() -> None:
    ledger = PullLedger(3, 1, THREE)
    ours = tags(1, 7, first=1)
    publish(ledger, 1, ours, words(10, 11, 20, 21, num_groups=2))
    ledger.begin(part(1, 2, 0, 2))
    assert ledger.last_fetch(4) is None, "a group is not published"
    publish(ledger, 1, ours, words(30, 31), first_group=2)
    assert ledger.last_fetch(4) is None, "a group is not held"
    read(ledger, part(1, 2, 0, 2), ours, words(10, 11, 20, 21, num_groups=2))
    ledger.begin(part(1, 2, 2))
    last = ledger.last_fetch(2)
    assert last is not None
    assert last.token_1 == (102, 7) and last.digests.tolist() == [[30], [31]]


def test_sealed_by_what_was_published_it_takes_the_last_tags_for_the_manifest() -> None:
    ledger = PullLedger(2, 0, THREE)
    whole = words(1, 2, 3, 4, 5, 6, num_groups=3)
    publish(ledger, 0, tags(1, 1), whole)
    assert ledger.next_read(2**20) == part(0, 2, 0, 3)
    read(ledger, part(0, 2, 0, 3), tags(1, 1), whole)
    publish(ledger, 1, tags(2, first=1), words(7, 8, 9, num_groups=3))
    ledger.seal_published()
    assert not ledger.complete
    assert ledger.next_read(2**20) == part(1, 1, 0, 3)
    read(ledger, part(1, 1, 0, 3), tags(2, first=1), words(7, 8, 9, num_groups=3))
    assert ledger.complete
    assert plain(ledger.tags()) == [(100, 1), (101, 2)]


def test_a_prompt_that_is_not_published_as_a_whole_is_not_sealed_by_it() -> None:
    ledger = PullLedger(2, 0, THREE)
    with pytest.raises(ProtocolError, match="before all of it"):
        ledger.seal_published()
    publish(ledger, 0, tags(1, 1), words(1, 2, 3, 4, num_groups=2))
    with pytest.raises(ProtocolError, match="before all of it"):
        ledger.seal_published()
    publish(ledger, 0, tags(1, 1), words(5, 6), first_group=2)
    ledger.seal_published()
    assert ledger.sealed
