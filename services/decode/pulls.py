"""The pulls a decode worker has under way, each in a task of its own."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace

from shared.errors import KVTransferError, PeerLostError
from shared.protocol import Attempt, Receive
from shared.transfer.transport import KVTransport, Pulled, PullRequest
from shared.worker.channel import Reserved

logger = logging.getLogger(__name__)

PullFailure = tuple[str, str]
"""code and text of a FAIL"""


class Pulls:
    """Starts, cancels and awaits pulls. The transport bounds how many read at once."""

    def __init__(self, transport: KVTransport, delay_s: float = 0.0) -> None:
        self.transport = transport
        self._delay_s = delay_s
        """planted at the end of each pull, for tests"""
        self._tasks: dict[Attempt, asyncio.Task[PullFailure | None]] = {}
        self._keepers: dict[Attempt, asyncio.Task[None]] = {}

    def start(
        self,
        message: Receive,
        reserved: Reserved,
        on_nearing: Callable[[], None],
        on_pulled: Callable[[Pulled], None],
        on_failed: Callable[[str, str], None],
    ) -> None:
        """`on_nearing`: see PullRequest. Exactly one of the others runs, unless the pull is
        cancelled: `on_failed` once no read touches the blocks any more, with the code and the text
        of a FAIL."""
        self.stop_keeping(reserved.attempt)
        request = replace(
            _request_of(message),
            block_ids=reserved.block_ids,
            num_present_blocks=reserved.num_present_blocks,
            on_nearing=on_nearing,
        )
        task = asyncio.create_task(self._run(request, on_pulled))
        self._tasks[reserved.attempt] = task

        def settle(task: "asyncio.Task[PullFailure | None]") -> None:
            self._tasks.pop(reserved.attempt, None)
            self.transport.traffic.forget(reserved.attempt)
            if task.cancelled():
                return
            if task.exception() is not None:
                logger.error("a pull broke", exc_info=task.exception())
                on_failed("kv_transfer", "the pull broke")
            elif (failure := task.result()) is not None:
                on_failed(*failure)

        task.add_done_callback(settle)

    def keep(self, message: Receive) -> None:
        """Nothing to pull into yet: hold prefill's lease until `start`, `cancel` or
        `stop_keeping`, however long the wait for blocks is."""
        attempt = message.work.attempt
        task = asyncio.create_task(self.transport.keep(_request_of(message)))
        self._keepers[attempt] = task

        def settle(task: "asyncio.Task[None]") -> None:
            if self._keepers.get(attempt) is task:
                del self._keepers[attempt]
            if not task.cancelled() and task.exception() is not None:
                logger.error("a lease is not kept", exc_info=task.exception())

        task.add_done_callback(settle)

    def stop_keeping(self, attempt: Attempt) -> None:
        keeper = self._keepers.get(attempt)
        if keeper is not None:
            keeper.cancel()

    def cancel(self, attempt: Attempt, then: Callable[[], None]) -> None:
        """`then` runs once no read touches the attempt's blocks any more; at once if none
        does."""
        self.stop_keeping(attempt)
        task = self._tasks.get(attempt)
        if task is None:
            then()
            return
        task.add_done_callback(lambda _: then())
        task.cancel()

    async def close(self) -> None:
        tasks = [*self._tasks.values(), *self._keepers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.transport.close()

    async def _run(
        self,
        request: PullRequest,
        on_pulled: Callable[[Pulled], None],
    ) -> PullFailure | None:
        try:
            pulled = await self.transport.pull(request)
        except KVTransferError as error:
            logger.warning("pull failed: %s", error)
            lost = isinstance(error, PeerLostError)
            return "source_lost" if lost else "kv_transfer", str(error)
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
            pulled = replace(pulled, end_ns=time.time_ns())
        on_pulled(pulled)
        return None


def _request_of(message: Receive) -> PullRequest:
    """Without a destination."""
    return PullRequest(
        attempt=message.work.attempt,
        source=message.source,
        source_incarnation=message.prefill_incarnation,
        ticket=message.ticket,
        block_ids=(),
    )
