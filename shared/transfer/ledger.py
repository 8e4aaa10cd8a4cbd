"""Decode's account of one pull: what was published, what was read under which tag, what is left.

A tag is (block id, generation). A block counts as held only under the tag that is published
for it now and only after the digest of its bytes matched. SEAL's manifest is the last
publication: every block whose tag differs from it is read again (R12). Pure; no I/O.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from shared.errors import ProtocolError

MAX_READS_PER_TAG = 3
"""a block whose bytes never match its digest is given up after this many reads"""


class Tag(NamedTuple):
    """Where prefill keeps a block, and which rewriting of it."""

    block_id: int
    generation: int


class BlockRange(NamedTuple):
    """Consecutive logical blocks."""

    first_block: int
    num_blocks: int


class _Slot:
    """One logical block of the destination."""

    __slots__ = ("digest", "held", "num_pending", "num_reads", "tag", "version")

    def __init__(self) -> None:
        self.tag: Tag | None = None
        self.digest = 0
        self.held = False
        self.num_pending = 0
        """reads queued or in flight"""
        self.num_reads = 0
        """reads under the current tag whose bytes did not match"""
        self.version = 0
        """counts the times the destination was overwritten"""


class PullLedger:
    """The first `num_present_blocks` blocks are neither read nor accounted for."""

    def __init__(self, num_blocks: int, num_present_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_present_blocks = num_present_blocks
        self.num_reread = 0
        self.sealed = False
        self._slots = [_Slot() for _ in range(num_blocks)]
        self._wanted: deque[BlockRange] = deque()
        self._num_missing = num_blocks - num_present_blocks
        self._num_pending = 0

    def publish(self, first_block: int, tags: Sequence[Tag], digests: Sequence[int]) -> None:
        """Blocks whose tag is new or has changed are wanted. ProtocolError out of range."""
        if first_block < 0 or first_block + len(tags) > self.num_blocks:
            raise ProtocolError("prefill published blocks that the prompt does not have")
        changed: list[int] = []
        for logical, tag, digest in zip(
            range(first_block, first_block + len(tags)), tags, digests, strict=True
        ):
            slot = self._slots[logical]
            if logical >= self.num_present_blocks and (slot.tag, slot.digest) != (tag, digest):
                self._set_held(slot, False)
                slot.tag, slot.digest, slot.num_reads = tag, digest, 0
                changed.append(logical)
        self._want(changed)

    def seal(self, tags: Sequence[Tag], digests: Sequence[int]) -> None:
        """The manifest: the last publication. What was given up is tried again."""
        if len(tags) != self.num_blocks:
            raise ProtocolError(f"sealed {len(tags)} blocks of a {self.num_blocks} block prompt")
        self.sealed = True
        self.publish(0, tags, digests)
        given_up = [
            logical
            for logical, slot in enumerate(self._slots)
            if logical >= self.num_present_blocks and not slot.held and not slot.num_pending
        ]
        for logical in given_up:
            self._slots[logical].num_reads = 0
        self._want(given_up)

    def next_read(self, max_blocks: int) -> BlockRange | None:
        """The oldest wanted range, at most `max_blocks` of it; None when nothing is wanted."""
        if not self._wanted:
            return None
        first, num = self._wanted.popleft()
        if num > max_blocks:
            self._wanted.appendleft(BlockRange(first + max_blocks, num - max_blocks))
        return BlockRange(first, min(num, max_blocks))

    def begin(self, blocks: BlockRange) -> tuple[int, ...]:
        """The destination is about to be overwritten; returns the versions for `finish`."""
        for slot in self._range(blocks):
            self._set_held(slot, False)
            slot.version += 1
        return tuple(slot.version for slot in self._range(blocks))

    def finish(
        self,
        blocks: BlockRange,
        versions: Sequence[int],
        tags: Sequence[Tag],
        digests: Sequence[int],
    ) -> None:
        """What a read brought: the tags it was sent under, the digests of the bytes as they lie
        in the destination. A block is held if both are the published ones and nothing has
        overwritten it since; otherwise it is wanted again, up to MAX_READS_PER_TAG times."""
        again: list[int] = []
        for offset, slot in enumerate(self._range(blocks)):
            slot.num_pending -= 1
            self._num_pending -= 1
            if versions[offset] != slot.version:
                continue
            if (tags[offset], digests[offset]) == (slot.tag, slot.digest):
                self._set_held(slot, True)
                continue
            slot.num_reads += 1
            if not slot.num_pending and slot.num_reads < MAX_READS_PER_TAG:
                again.append(blocks.first_block + offset)
        self._want(again)

    @property
    def idle(self) -> bool:
        """Sealed, and no read is queued or in flight: what is missing now stays missing."""
        return self.sealed and not self._num_pending

    @property
    def complete(self) -> bool:
        """Idle, and every block is held under the manifest's tag."""
        return self.idle and not self._num_missing

    def tags(self) -> list[Tag]:
        """Published tags of the blocks that are read, for VERIFY."""
        return [slot.tag for slot in self._slots[self.num_present_blocks :] if slot.tag]

    def tags_of(self, blocks: BlockRange) -> list[Tag]:
        """Tags that are published for these blocks now; `next_read` gave the range."""
        return [slot.tag for slot in self._range(blocks) if slot.tag]

    @property
    def num_read_blocks(self) -> int:
        """Distinct blocks that were received at least once."""
        return sum(slot.version > 0 for slot in self._slots)

    def _range(self, blocks: BlockRange) -> list[_Slot]:
        return self._slots[blocks.first_block : blocks.first_block + blocks.num_blocks]

    def _set_held(self, slot: _Slot, held: bool) -> None:
        self._num_missing += slot.held - held
        slot.held = held

    def _want(self, logical_blocks: Sequence[int]) -> None:
        """Queue reads, neighbours together."""
        start = 0
        for end in range(1, len(logical_blocks) + 1):
            if end < len(logical_blocks) and logical_blocks[end] == logical_blocks[end - 1] + 1:
                continue
            self._wanted.append(BlockRange(logical_blocks[start], end - start))
            start = end
        for logical in logical_blocks:
            slot = self._slots[logical]
            self.num_reread += bool(slot.version or slot.num_pending)
            slot.num_pending += 1
            self._num_pending += 1
