"""The KV that is there from one step to the next, and how full its blocks are."""

from shared.engine.engine import Engine


class KeptBlocks:
    """Of one run, which begins now; `note` after each step, or wherever something may be kept."""

    def __init__(self, engine: Engine, block_size: int) -> None:
        self.most = 0
        """blocks, in use or in the prefix cache; what was there before does not count"""
        self._num_before = _num_blocks(engine)
        self._block_size = block_size
        self._num_positions = 0
        """of blocks in use, summed over the steps"""
        self._num_filled = 0

    def note(self, engine: Engine) -> None:
        self.most = max(self.most, _num_blocks(engine) - self._num_before)
        size = self._block_size
        filled: dict[int, int] = {}
        """a block that sequences share counts once"""
        for sequence in engine.sequences.values():
            for index, block in enumerate(sequence.block_table):
                inside = min(max(sequence.num_computed_tokens - index * size, 0), size)
                filled[block] = max(filled.get(block, 0), inside)
        self._num_positions += len(filled) * size
        self._num_filled += sum(filled.values())

    @property
    def filled_share(self) -> float | None:
        """Of the positions in use, those with a token's K and V; None: nothing was kept."""
        return self._num_filled / self._num_positions if self._num_positions else None


def _num_blocks(engine: Engine) -> int:
    load = engine.load()
    return load.held + load.cached
