"""Digests of the worker's own blocks, formed in threads of the io process."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from shared.kv.columns import Words
from shared.kv.digest import BlockDigests
from shared.kv.layer_groups import GroupRange
from shared.kv.memory import KVMemory


class DigestThreads:
    """Digests blocks off the event loop; numpy releases the interpreter lock while it works."""

    def __init__(self, memory: KVMemory) -> None:
        self.memory = memory
        self._blocks = BlockDigests.of_pool(memory)
        self._executor = ThreadPoolExecutor(max_workers=2, thread_name_prefix="kv-digest")

    def digests(
        self, block_ids: Sequence[int], groups: GroupRange, step: int | None = None
    ) -> "asyncio.Future[Words]":
        """[blocks, groups]. Done when the thread is; cancelling the future does not stop a thread
        that runs, so shield it and wait for it before its blocks are given away. No step can be
        waited for here."""
        assert step is None
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._executor, self._blocks.of, block_ids, groups)

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)
