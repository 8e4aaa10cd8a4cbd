"""Digests of what an engine in this process announces, in place of a mover."""

import asyncio
from collections.abc import Sequence

from shared.engine.engine import Engine
from shared.kv.columns import Words
from shared.kv.layer_groups import GroupRange
from shared.transfer.digest_threads import DigestThreads


class MarkedDigests(DigestThreads):
    """Waits for the step's mark as a mover does."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.memory)
        self._marks = engine.kv_pool.marks

    def digests(
        self, block_ids: Sequence[int], groups: GroupRange, step: int | None = None
    ) -> "asyncio.Future[Words]":
        def after_step() -> Words:
            asked = groups
            if step is not None:
                self._marks.of_step(step, groups.first)
                asked = GroupRange(groups.first, self._marks.num_written(step, groups))
            return self._blocks.of(block_ids, asked)

        return asyncio.get_running_loop().run_in_executor(self._executor, after_step)
