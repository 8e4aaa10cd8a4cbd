"""The holders of each KV block: references, the prefix cache and its eviction. Moves no bytes.

A block is
    free    no content
    cached  full, carries a hash, nobody refers to it: content until it is needed elsewhere
    held    somebody refers to it, for whatever reason (running, reserved, leased)
and free + cached + held == total at every moment.

Only full blocks carry a hash and only hashed blocks are shared. A hash is registered under the
block of its parent hash, so the index is a forest; whoever refers to a block refers to all its
ancestors. Hence a cached block has no held descendant, everything cached can be evicted leaf
by leaf, and a prefix in the index never has a hole.

What only bulk work has used is told apart, and so are all its descendants. More of it than a share
of the pool is not kept at the expense of anything else: a batch of documents that nobody asks for
again would push out the conversations that go on.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Protocol

from shared.engine.scheduling.eviction import EvictionOrder
from shared.errors import OutOfBlocksError

NO_PARENT = -1
MIN_BLOCKS = 2
"""of a pool that an engine can run with"""
BULK_SHARE = 0.25
"""of the pool: enough for what the requests of a batch have in common"""
MAX_STORED = 256
"""told at a time: a report of all that a long prompt stores would hold the next token up"""


class Generations(Protocol):
    """An integer per block: shared memory in a worker, a list in a test."""

    def __len__(self) -> int: ...

    def __getitem__(self, block: int, /) -> int: ...

    def __setitem__(self, block: int, generation: int, /) -> None: ...


class BlockPool:
    """`num_blocks` block ids. Every operation is O(1) or O(log n) per block.

    `generations[b]` goes up when b is allocated for writing, before anything writes (R6).
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        generations: Generations,
        *,
        prefix_cache: bool = True,
        told_every: int = 1,
    ) -> None:
        """`told_every`: blocks of a prefix from one that `drain_events` tells to the next."""
        if num_blocks < 1 or len(generations) < num_blocks:
            raise ValueError(f"{num_blocks} blocks with {len(generations)} generations")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.generations = generations
        self.prefix_cache = prefix_cache
        self._told_every = told_every
        self.version = 0
        """goes up with all that changes which blocks are held or have which content"""
        self.num_cached = 0
        self.num_cached_bulk = 0
        """of them, those that only bulk work has used"""
        self.num_held = 0
        self.free_ids = list(range(num_blocks - 1, -1, -1))
        """stack of blocks without content"""
        self.ref_counts = [0] * num_blocks
        self.hashes: list[bytes | None] = [None] * num_blocks
        self.parents = [NO_PARENT] * num_blocks
        """block of the parent hash, meaningful while hashed"""
        self.num_children = [0] * num_blocks
        """hashed blocks whose parent this is"""
        self.depths = [0] * num_blocks
        """blocks from the root to this one, both counted; 0 while not hashed"""
        self.is_bulk = bytearray(num_blocks)
        """1: only bulk work has used it; meaningful while hashed"""
        self.by_hash: dict[bytes, int] = {}
        self.evictable = EvictionOrder(num_blocks)
        """cached blocks without children, least recently released first"""
        self.written = [generations[block] for block in range(num_blocks)]
        """generation each block must have: nobody else bumps it and no bump is forgotten"""
        self._stored: dict[bytes, int] = {}
        self._removed: dict[bytes, None] = {}

    @property
    def num_free(self) -> int:
        return len(self.free_ids)

    @property
    def num_available(self) -> int:
        """Blocks that allocate() can give: the free and, evicting, all the cached."""
        return len(self.free_ids) + self.num_cached

    def match(self, hashes: Iterable[bytes]) -> list[int]:
        """Blocks of the longest known prefix of a hash chain. Takes no reference."""
        blocks: list[int] = []
        for block_hash in hashes:
            block = self.by_hash.get(block_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def num_available_beside(self, block_ids: Iterable[int]) -> int:
        """What num_available would be with these blocks referred to."""
        return self.num_available - sum(self.ref_counts[block] == 0 for block in block_ids)

    def acquire(self, block_ids: Iterable[int], *, bulk: bool = False) -> None:
        """One more reference to each of these cached or held blocks. `bulk`: for bulk work."""
        self.version += 1
        for block in block_ids:
            if self.ref_counts[block] == 0:
                assert self.hashes[block] is not None, f"block {block} is free"
                self.evictable.discard(block)
                self.num_cached -= 1
                self.num_cached_bulk -= self.is_bulk[block]
                self.num_held += 1
            self.ref_counts[block] += 1
            self.is_bulk[block] &= bulk

    def allocate(self, num_blocks: int) -> list[int]:
        """Blocks to write, one reference each; OutOfBlocksError leaves the pool as it was."""
        if num_blocks > self.num_available:
            raise OutOfBlocksError(f"{num_blocks} blocks wanted, {self.num_available} available")
        return [self._allocate_one() for _ in range(num_blocks)]

    def free(self, block_ids: Sequence[int]) -> None:
        """Give back one reference to each block of a table, last block first.

        The last reference turns a hashed block into a cached one and any other into a free one.
        """
        self.version += 1
        for block in reversed(block_ids):
            assert self.ref_counts[block] > 0, f"block {block} freed twice"
            self.ref_counts[block] -= 1
            if self.ref_counts[block]:
                continue
            self.num_held -= 1
            if self.hashes[block] is None:
                self.free_ids.append(block)
            else:
                self.num_cached += 1
                self.num_cached_bulk += self.is_bulk[block]
                self.evictable.touch(block)
                if self.num_children[block] == 0:
                    self._make_evictable(block)

    def register(self, block: int, block_hash: bytes, parent: int, *, bulk: bool = False) -> int:
        """Enter a full, held block into the prefix cache under `parent` (a block, or NO_PARENT).
        `bulk`: bulk work computed it.

        Returns the block to use from now on: where the content is known already, the reference
        moves to the known block and this one is given back. The caller refers to `parent`.
        """
        if not self.prefix_cache or self.hashes[block] == block_hash:
            return block
        assert self.hashes[block] is None, f"block {block} already has a content"
        known = self.by_hash.get(block_hash)
        if known is not None:
            self.acquire((known,), bulk=bulk)
            self.free((block,))
            return known
        self.version += 1
        self.hashes[block] = block_hash
        self.is_bulk[block] = bulk
        self.by_hash[block_hash] = block
        self.parents[block] = parent
        self.depths[block] = 1
        if parent != NO_PARENT:
            self.num_children[parent] += 1
            self.depths[block] += self.depths[parent]
        self._note_stored(block_hash, self.depths[block])
        return block

    @property
    def has_events(self) -> bool:
        """`drain_events` has more to tell."""
        return bool(self._stored or self._removed)

    def drain_events(self) -> tuple[list[tuple[bytes, int]], list[bytes]]:
        """(stored with depth, removed) of blocks that are told: the net change, so disjoint. All
        that was removed since the last call, and the earliest MAX_STORED of what was stored and
        not told yet."""
        stored, removed = list(islice(self._stored.items(), MAX_STORED)), list(self._removed)
        for block_hash, _ in stored:
            del self._stored[block_hash]
        self._removed = {}
        return stored, removed

    def cached_prefixes(self) -> list[tuple[bytes, int]]:
        """The hashes in the prefix cache that are told, with their depths."""
        found = ((block_hash, self.depths[block]) for block_hash, block in self.by_hash.items())
        return [(block_hash, depth) for block_hash, depth in found if self._is_told(depth)]

    def _allocate_one(self) -> int:
        if not self.free_ids:
            is_over = self.num_cached_bulk > BULK_SHARE * self.num_blocks
            self._evict(self.evictable.pop(bulk_first=is_over))
        self.version += 1
        block = self.free_ids.pop()
        self.written[block] += 1
        self.generations[block] += 1
        self.ref_counts[block] = 1
        self.num_held += 1
        return block

    def _evict(self, block: int) -> None:
        block_hash = self.hashes[block]
        assert block_hash is not None and self.ref_counts[block] == 0
        parent = self.parents[block]
        if parent != NO_PARENT:
            self.num_children[parent] -= 1
            if self.num_children[parent] == 0 and self.ref_counts[parent] == 0:
                self._make_evictable(parent)
        self._note_removed(block_hash, self.depths[block])
        del self.by_hash[block_hash]
        self.hashes[block] = None
        self.parents[block] = NO_PARENT
        self.depths[block] = 0
        self.num_cached -= 1
        self.num_cached_bulk -= self.is_bulk[block]
        self.free_ids.append(block)

    def _make_evictable(self, block: int) -> None:
        self.evictable.add(block, bulk=bool(self.is_bulk[block]))

    def _is_told(self, depth: int) -> bool:
        return depth % self._told_every == 0

    def _note_stored(self, block_hash: bytes, depth: int) -> None:
        if not self._is_told(depth):
            return
        if block_hash in self._removed:
            del self._removed[block_hash]
        else:
            self._stored[block_hash] = depth

    def _note_removed(self, block_hash: bytes, depth: int) -> None:
        if not self._is_told(depth):
            return
        if block_hash in self._stored:
            del self._stored[block_hash]
        else:
            self._removed[block_hash] = None
