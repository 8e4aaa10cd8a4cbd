"""The ledger of a pull: complete exactly when every block is held under the sealed tag."""

import random
from collections import deque
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import ProtocolError
from shared.transfer.ledger import MAX_READS_PER_TAG, BlockRange, PullLedger, Tag


def tags(*generations: int) -> list[Tag]:
    return [Tag(100 + index, generation) for index, generation in enumerate(generations)]


def read(ledger: PullLedger, blocks: BlockRange, sent: Sequence[Tag], *digests: int) -> None:
    ledger.finish(blocks, ledger.begin(blocks), sent, digests)


def test_pieces_are_read_as_they_come_and_complete_after_seal() -> None:
    ledger = PullLedger(3, 0)
    ledger.publish(0, tags(1, 1), [10, 11])
    assert ledger.next_read(8) == (0, 2)
    assert ledger.next_read(8) is None
    read(ledger, BlockRange(0, 2), tags(1, 1), 10, 11)
    ledger.publish(2, [Tag(5, 1)], [12])
    ledger.seal([*tags(1, 1), Tag(5, 1)], [10, 11, 12])
    assert not ledger.complete
    assert ledger.next_read(8) == (2, 1)
    assert not ledger.idle
    read(ledger, BlockRange(2, 1), [Tag(5, 1)], 12)
    assert ledger.complete
    assert (ledger.num_reread, ledger.num_read_blocks) == (0, 3)


def test_reads_are_capped_and_stay_in_order() -> None:
    ledger = PullLedger(5, 0)
    ledger.publish(0, tags(1, 1, 1, 1, 1), range(5))
    assert [ledger.next_read(2) for _ in range(4)] == [(0, 2), (2, 2), (4, 1), None]


def test_present_blocks_are_not_read_and_not_verified() -> None:
    ledger = PullLedger(3, 2)
    ledger.publish(0, tags(1, 1, 1), range(3))
    assert ledger.next_read(8) == (2, 1)
    read(ledger, BlockRange(2, 1), [Tag(102, 1)], 2)
    ledger.seal(tags(1, 1, 1), range(3))
    assert ledger.complete
    assert ledger.tags() == [Tag(102, 1)]


def test_all_present_is_complete_at_seal() -> None:
    ledger = PullLedger(2, 2)
    assert not ledger.complete
    ledger.seal(tags(4, 4), [0, 0])
    assert ledger.complete
    assert ledger.tags() == []


def test_a_tag_that_differs_from_the_manifest_is_read_again() -> None:
    ledger = PullLedger(2, 0)
    ledger.publish(0, tags(1, 1), [10, 11])
    ledger.next_read(8)
    read(ledger, BlockRange(0, 2), tags(1, 1), 10, 11)
    ledger.seal(tags(1, 2), [10, 21])
    assert not ledger.complete
    assert ledger.next_read(8) == (1, 1)
    read(ledger, BlockRange(1, 1), [Tag(101, 2)], 21)
    assert ledger.complete
    assert ledger.num_reread == 1


def test_a_read_in_flight_under_an_old_tag_does_not_count() -> None:
    ledger = PullLedger(1, 0)
    ledger.publish(0, tags(1), [10])
    blocks = ledger.next_read(8)
    assert blocks is not None
    versions = ledger.begin(blocks)
    ledger.seal(tags(2), [20])
    ledger.finish(blocks, versions, tags(1), [10])
    assert not ledger.idle
    assert ledger.next_read(8) == blocks
    read(ledger, blocks, tags(2), 20)
    assert ledger.complete


def test_bytes_overwritten_after_their_digest_was_taken_do_not_count() -> None:
    ledger = PullLedger(1, 0)
    blocks = BlockRange(0, 1)
    ledger.publish(0, tags(1), [10])
    ledger.next_read(8)
    old = ledger.begin(blocks)
    ledger.publish(0, tags(2), [20])
    ledger.publish(0, tags(1), [10])
    new = ledger.begin(blocks)
    ledger.seal(tags(1), [10])
    ledger.finish(blocks, old, tags(1), [10])
    assert not ledger.complete
    ledger.finish(blocks, new, tags(1), [10])
    assert not ledger.complete, "one more read is queued and would overwrite the block"
    assert ledger.next_read(8) == blocks
    read(ledger, blocks, tags(1), 10)
    assert ledger.complete


def test_damage_is_read_again_and_given_up_after_a_few_times() -> None:
    ledger = PullLedger(1, 0)
    ledger.publish(0, tags(1), [10])
    ledger.seal(tags(1), [10])
    for _ in range(MAX_READS_PER_TAG):
        assert not ledger.idle
        blocks = ledger.next_read(8)
        assert blocks is not None
        read(ledger, blocks, tags(1), 99)
    assert ledger.idle
    assert not ledger.complete


def test_what_was_given_up_before_seal_is_tried_again_at_seal() -> None:
    ledger = PullLedger(1, 0)
    ledger.publish(0, tags(1), [10])
    while blocks := ledger.next_read(8):
        read(ledger, blocks, tags(1), 99)
    assert not ledger.idle
    ledger.seal(tags(1), [10])
    assert ledger.next_read(8) == (0, 1)
    read(ledger, BlockRange(0, 1), tags(1), 10)
    assert ledger.complete


def test_the_same_piece_twice_is_read_once() -> None:
    ledger = PullLedger(2, 0)
    for _ in range(3):
        ledger.publish(0, tags(1, 1), [10, 11])
    assert ledger.next_read(8) == (0, 2)
    assert ledger.next_read(8) is None


def test_a_source_that_talks_nonsense_is_refused() -> None:
    ledger = PullLedger(2, 0)
    with pytest.raises(ProtocolError):
        ledger.publish(1, tags(1, 1), [0, 0])
    with pytest.raises(ProtocolError):
        ledger.publish(-1, tags(1), [0])
    with pytest.raises(ProtocolError):
        ledger.seal(tags(1), [0])


def random_pull_is_consistent(ledger_type: type[PullLedger], seed: int) -> bool:
    """A source that republishes at random, reads that arrive late, damaged or under another
    tag. Content of a block is its tag; its digest is the tag's hash. False when the ledger
    calls complete what does not hold the sealed content."""
    rng = random.Random(seed)  # noqa: S311
    num = rng.randint(1, 6)
    present = rng.randint(0, min(2, num))
    ledger = ledger_type(num, present)
    now = [Tag(index, 0) for index in range(num)]
    destination: list[Tag | None] = [None] * num
    running: deque[tuple[BlockRange, tuple[int, ...], list[Tag], list[int]]] = deque()
    num_publications = rng.randint(1, 6)
    ledger.publish(0, now, list(map(hash, now)))
    while not ledger.idle:
        if num_publications and rng.random() < 0.3:
            num_publications -= 1
            at = rng.randrange(num)
            now[at] = Tag(rng.randint(0, 9), now[at].generation + rng.randint(0, 1))
            ledger.publish(at, [now[at]], [hash(now[at])])
        elif not num_publications and not ledger.sealed:
            ledger.seal(now, list(map(hash, now)))
        elif (blocks := ledger.next_read(rng.randint(1, 3))) is not None:
            versions = ledger.begin(blocks)
            span = slice(blocks.first_block, blocks.first_block + blocks.num_blocks)
            sent = list(now[span])
            destination[span] = sent if rng.random() > 0.1 else [None] * len(sent)
            running.append((blocks, versions, sent, list(map(hash, destination[span]))))
        elif running:
            running.rotate(rng.randrange(len(running)))
            ledger.finish(*running.popleft())
    if not ledger.complete:
        return True
    return destination[present:] == now[present:] == ledger.tags()


@settings(max_examples=300)
@given(st.integers(0, 2**32))
def test_complete_means_that_every_block_holds_the_sealed_content(seed: int) -> None:
    assert random_pull_is_consistent(PullLedger, seed)


class BlindToOverwriting(PullLedger):
    """Trusts a digest whose block has been overwritten since."""

    def finish(
        self,
        blocks: BlockRange,
        versions: Sequence[int],
        tags: Sequence[Tag],
        digests: Sequence[int],
    ) -> None:
        current = [slot.version for slot in self._range(blocks)]
        super().finish(blocks, current, tags, digests)


class BlindToTags(PullLedger):
    """Believes that every read came under the published tag and undamaged."""

    def finish(
        self,
        blocks: BlockRange,
        versions: Sequence[int],
        tags: Sequence[Tag],
        digests: Sequence[int],
    ) -> None:
        slots = self._range(blocks)
        published = [slot.tag or Tag(0, 0) for slot in slots]
        super().finish(blocks, versions, published, [slot.digest for slot in slots])


@pytest.mark.parametrize("mutant", [BlindToOverwriting, BlindToTags])
def test_the_random_pulls_find_a_ledger_that_is_blind(mutant: type[PullLedger]) -> None:
    assert not all(random_pull_is_consistent(mutant, seed) for seed in range(3000))
