"""The invariants of pool, block tables and queues, checked by recounting from scratch.

Each check names what it found; O(blocks).
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from shared.engine.engine import Engine
from shared.engine.handover.adoptions import MAX_COMMITTED
from shared.engine.scheduling.block_pool import NO_PARENT, BlockPool
from shared.engine.scheduling.scheduler import Scheduler
from shared.engine.scheduling.sequence import Sequence as EngineSequence
from shared.engine.scheduling.sequence import SequenceState

_WITHOUT_BLOCKS = (SequenceState.COMPILING, SequenceState.WAITING)
_RUNNING = (SequenceState.WRITING, SequenceState.VERIFIED, SequenceState.DECODE)


class IntegrityError(AssertionError):
    """An invariant of ours is broken; serving on would mix up answers or leak memory."""


def check_engine(engine: Engine) -> None:
    """IntegrityError if pool, block tables and queues disagree; between steps only."""
    pool, scheduler, known = engine._pool, engine._scheduler, list(engine.sequences.values())
    twins = [list(sequence.twin_blocks.values()) for sequence in known]
    check_pool(pool, [*(sequence.block_table for sequence in known), *twins])
    _check_queues(scheduler, known)
    for sequence in known:
        _check_sequence(pool, sequence)


def check_pool(pool: BlockPool, block_tables: Iterable[Sequence[int]]) -> None:
    """IntegrityError if any invariant fails. `block_tables`: every table that holds blocks."""
    tables = [list(table) for table in block_tables]
    _check_references(pool, tables)
    _check_partition(pool)
    _check_index(pool)
    _check_forest(pool)
    _check_eviction(pool)
    _check_generations(pool)


def _check_references(pool: BlockPool, tables: list[list[int]]) -> None:
    users: Counter[int] = Counter()
    for table in tables:
        if len(set(table)) != len(table):
            _fail("a block table names a block twice", table)
        users.update(table)
    for block in range(pool.num_blocks):
        count, counted = pool.ref_counts[block], users[block]
        if count != counted:
            _fail(f"block {block} has {count} references and is in {counted} tables", "")
        if count > 1 and pool.hashes[block] is None:
            _fail("a block without a hash is shared", block)


def _check_partition(pool: BlockPool) -> None:
    blocks = range(pool.num_blocks)
    free = set(pool.free_ids)
    if len(free) != len(pool.free_ids):
        _fail("the free list names a block twice", "")
    held = {block for block in blocks if pool.ref_counts[block]}
    cached = {block for block in blocks if pool.hashes[block] is not None} - held
    if free & held:
        _fail("held blocks are in the free list", free & held)
    if free & cached:
        _fail("blocks with a content are in the free list", free & cached)
    if lost := set(blocks) - free - held - cached:
        _fail("blocks are neither free nor cached nor held", lost)
    if (pool.num_held, pool.num_cached) != (len(held), len(cached)):
        _fail(
            f"counted {len(held)} held and {len(cached)} cached blocks, the pool says",
            (pool.num_held, pool.num_cached),
        )
    num_bulk = sum(pool.is_bulk[block] for block in cached)
    if pool.num_cached_bulk != num_bulk:
        _fail(f"counted {num_bulk} cached blocks of bulk work, the pool says", pool.num_cached_bulk)


def _check_index(pool: BlockPool) -> None:
    for block_hash, block in pool.by_hash.items():
        if pool.hashes[block] != block_hash:
            _fail("the index names a block that has another hash", block)
    for block, block_hash_ in enumerate(pool.hashes):
        if block_hash_ is not None and block_hash_ not in pool.by_hash:
            _fail("a hashed block is not in the index", block)


def _check_forest(pool: BlockPool) -> None:
    children: Counter[int] = Counter()
    for block in pool.by_hash.values():
        parent = pool.parents[block]
        children[parent] += 1
        depth = 0
        if parent != NO_PARENT:
            depth = pool.depths[parent]
            if pool.hashes[parent] is None:
                _fail("a parent was evicted before its child", (parent, block))
            if pool.ref_counts[block] and not pool.ref_counts[parent]:
                _fail("a block is held and its parent is not", (parent, block))
            if pool.is_bulk[parent] and not pool.is_bulk[block]:
                _fail("a block is not only bulk work's, and its parent is", (parent, block))
        if pool.depths[block] != depth + 1:
            _fail(f"depth {pool.depths[block]} under a parent of depth {depth}", block)
    for block in range(pool.num_blocks):
        if pool.num_children[block] != children[block]:
            _fail(f"{children[block]} children, the block says {pool.num_children[block]}", block)


def _check_eviction(pool: BlockPool) -> None:
    for block in range(pool.num_blocks):
        leaf = pool.hashes[block] is not None and not pool.num_children[block]
        wanted = leaf and not pool.ref_counts[block]
        if wanted and block not in pool.evictable:
            _fail("a cached leaf can never be evicted", block)
        if not wanted and block in pool.evictable:
            _fail("a block that must stay can be evicted", block)
    if not pool.evictable.is_consistent():
        _fail("an evictable block has no place in the eviction order", "")


def _check_generations(pool: BlockPool) -> None:
    for block in range(pool.num_blocks):
        seen, expected = pool.generations[block], pool.written[block]
        if seen != expected:
            _fail(f"generation {seen} after {expected} allocations", block)


def _check_queues(scheduler: Scheduler, sequences: list[EngineSequence]) -> None:
    _check_members("waiting", scheduler.waiting, sequences, (SequenceState.WAITING,))
    _check_members("running", scheduler.running, sequences, _RUNNING)
    _check_members("reserved", scheduler.reserved, sequences, (SequenceState.RESERVED,))
    for queue in (list(scheduler.waiting), scheduler.running):
        ranks = [(sequence.work.priority, sequence.arrival) for sequence in queue]
        if ranks != sorted(ranks):
            _fail("a queue is out of order", ranks)
    head = scheduler.waiting[0] if scheduler.waiting else None
    for sequence in scheduler.running:
        gives_way = sequence.spec.mode == "full" and not sequence.pinned
        if head is None or not gives_way or sequence.work.priority < head.work.priority:
            continue
        if head.num_preemptions and sequence.work.priority == head.work.priority:
            continue  # it was cheaper to restore
        if sequence.arrival > head.arrival:
            _fail("a younger sequence overtook the head of the queue", sequence.attempt)


def _check_members(
    name: str,
    queue: Iterable[EngineSequence],
    sequences: list[EngineSequence],
    states: tuple[SequenceState, ...],
) -> None:
    queued = {sequence.attempt for sequence in queue}
    expected = {sequence.attempt for sequence in sequences if sequence.state in states}
    if queued != expected:
        _fail(f"the {name} queue and the sequences disagree", queued ^ expected)


def _check_sequence(pool: BlockPool, sequence: EngineSequence) -> None:
    table, computed = sequence.block_table, sequence.num_computed_tokens
    if (sequence.state in _WITHOUT_BLOCKS) != (not table):
        _fail(f"{len(table)} blocks in state {sequence.state.value}", sequence.attempt)
    if computed > len(table) * pool.block_size or computed > len(sequence.token_ids):
        _fail(f"{computed} computed tokens in {len(table)} blocks", sequence.attempt)
    committed = sequence.num_committed_blocks
    for index, block in enumerate(table):
        block_hash = pool.hashes[sequence.twin_blocks.get(index, block)]
        if index < committed and block_hash != sequence.block_hashes[index]:
            _fail("a block of the table holds another content", (sequence.attempt, index))
        if index >= committed and block_hash is not None:
            _fail("a block still to be written is in the index", (sequence.attempt, index))
    expected = computed // pool.block_size
    adopted = sequence.spec.mode == "decode" and expected > MAX_COMMITTED
    to_come = adopted or sequence.unverified or sequence.state is SequenceState.VERIFIED
    if sequence.unverified and committed > sequence.num_cached_tokens // pool.block_size:
        _fail("blocks are named before their content is verified", sequence.attempt)
    to_come &= committed < expected
    if pool.prefix_cache and sequence.state in _RUNNING and committed != expected and not to_come:
        _fail(f"{committed} blocks committed of {expected} complete", sequence.attempt)


def _fail(what: str, which: object) -> None:
    raise IntegrityError(f"KV pool: {what} ({which})" if which != "" else f"KV pool: {what}")
