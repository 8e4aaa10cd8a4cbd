"""Prefix index: which worker holds how much of a prompt, from memory alone.

A hint for routing. It knows chain hashes at every `stride`-th block only and runs behind the
workers; whoever relies on it finds out on arrival what is really there.

Each worker has one bit. The index maps a hash to the mask of its holders, so that a lookup is
one dictionary access and one AND per stride of the prompt, whatever the number of workers.
"""

from collections.abc import Sequence

from shared.kv.block_hash import STRIDE
from shared.state.kv_events import KVEvent, KVSnapshot


class PrefixIndex:
    """Fed with events and snapshots; pure, no I/O."""

    def __init__(self, stride: int = STRIDE) -> None:
        self._stride = stride
        self._masks: dict[bytes, int] = {}
        self._workers: dict[str, _Worker] = {}
        self._by_bit: dict[int, str] = {}

    def __len__(self) -> int:
        """Number of (worker, hash) entries."""
        return sum(len(worker.held) for worker in self._workers.values())

    def position(self, incarnation: str) -> int | None:
        """Number of the last event known of a worker; None if it has to be loaded."""
        worker = self._workers.get(incarnation)
        return None if worker is None else worker.seq

    def incarnations(self) -> frozenset[str]:
        return frozenset(self._workers)

    def apply(self, event: KVEvent) -> bool:
        """Takes in the event that follows; older ones change nothing.

        False: events are missing in between. All entries of that worker are dropped, and
        `load` has to follow.
        """
        worker = self._workers.get(event.incarnation)
        if worker is not None and event.seq <= worker.seq:
            return True
        if worker is None or event.reset or event.seq != worker.seq + 1:
            self.drop(event.incarnation)
            return False
        worker.seq = event.seq
        for block_hash in event.removed:
            self._remove(worker, block_hash)
        for block_hash in event.stored:
            self._add(worker, block_hash)
        return True

    def load(self, snapshot: KVSnapshot) -> None:
        """Replaces everything known of a worker."""
        self.drop(snapshot.incarnation)
        worker = _Worker(self._free_bit(), snapshot.seq)
        self._workers[snapshot.incarnation] = worker
        self._by_bit[worker.bit] = snapshot.incarnation
        for block_hash in snapshot.held:
            self._add(worker, block_hash)

    def drop(self, incarnation: str) -> None:
        """Forgets a worker; not known is fine."""
        worker = self._workers.pop(incarnation, None)
        if worker is None:
            return
        del self._by_bit[worker.bit]
        for block_hash in tuple(worker.held):
            self._remove(worker, block_hash)

    def holders(self, block_hashes: Sequence[bytes]) -> dict[str, int]:
        """Leading blocks each worker holds, in steps of the stride; only workers with any.

        `block_hashes`: chain hashes of all full blocks of a prompt, in order.
        """
        counts: dict[str, int] = {}
        mask = -1
        depth = 0
        for at in range(self._stride - 1, len(block_hashes), self._stride):
            still = mask & self._masks.get(block_hashes[at], 0)
            if still != mask and depth:
                self._note(mask & ~still, depth, counts)
            mask = still
            if not mask:
                return counts
            depth = at + 1
        if depth:
            self._note(mask, depth, counts)
        return counts

    def _note(self, mask: int, depth: int, counts: dict[str, int]) -> None:
        while mask:
            bit = mask & -mask
            counts[self._by_bit[bit]] = depth
            mask ^= bit

    def _add(self, worker: "_Worker", block_hash: bytes) -> None:
        worker.held.add(block_hash)
        mask = self._masks.get(block_hash, 0)
        self._masks[block_hash] = mask | worker.bit if mask else worker.bit

    def _remove(self, worker: "_Worker", block_hash: bytes) -> None:
        if block_hash not in worker.held:
            return
        worker.held.remove(block_hash)
        mask = self._masks[block_hash] & ~worker.bit
        if mask:
            self._masks[block_hash] = mask
        else:
            del self._masks[block_hash]

    def _free_bit(self) -> int:
        bit = 1
        while bit in self._by_bit:
            bit <<= 1
        return bit


class _Worker:
    """What is known of one incarnation."""

    def __init__(self, bit: int, seq: int) -> None:
        self.bit = bit
        self.seq = seq
        self.held: set[bytes] = set()
