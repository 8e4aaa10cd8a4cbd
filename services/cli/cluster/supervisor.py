"""A whole system on one machine, as a context: Redis, the gateway, the workers.

Life cycle
    1  Redis, when it is embedded
    2  gateway and workers, all at once; each is told this process's pid and dies with it
    3  ready: every worker that was started is in the gateway's status as ready
    4  watch: a process that dies starts again with a new incarnation (--restart always)
    5  stop: the gateway drains, then the workers, then Redis

Must run on the main thread: the kernel ends a child when the thread that made it ends.
"""

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

from services.cli.cluster.child import Child
from services.cli.cluster.output import Output
from services.cli.cluster.plan import ProcessSpec
from services.cli.gateway_client import GatewayClient
from shared.errors import BatonError
from shared.loops import Loops
from shared.state.embedded import EmbeddedRedis

POLL_S = 0.1
PROGRESS_S = 5.0
REDIS_POLL_S = 0.5
GATEWAY_PATIENCE_S = 3.0
WORKER_PATIENCE_S = 3.0
PROBE_TIMEOUT_S = 2.0


class Supervisor:
    """Owns the processes between `__aenter__` and `__aexit__`.

    `command` is what runs `baton`, e.g. [python, path/to/baton]. The first spec is the gateway.
    """

    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        command: Sequence[str],
        output: Output,
        *,
        redis: EmbeddedRedis | None,
        restart: bool,
    ) -> None:
        self._output = output
        self._redis = redis
        self._restart = restart
        self.children = [Child(spec, command, output, restart=restart) for spec in specs]
        self._tasks: list[asyncio.Task[None]] = []
        self._loops = Loops()

    async def __aenter__(self) -> Self:
        self._started_s = time.monotonic()
        self._tasks = [asyncio.create_task(child.run()) for child in self.children]
        if self._redis is not None:
            self._loops.start("redis", partial(self._watch_redis, self._redis), REDIS_POLL_S)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        gateway, *workers = self.children
        await gateway.stop(GATEWAY_PATIENCE_S)
        await asyncio.gather(*(worker.stop(WORKER_PATIENCE_S) for worker in workers))
        await self._loops.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def wait_ready(self, admin_url: str) -> None:
        """Until all workers are ready and the gateway serves; StartError when one cannot."""
        client = GatewayClient(admin_url, timeout_s=PROBE_TIMEOUT_S)
        said_s = time.monotonic()
        while True:  # until all are ready
            self._raise_failures()
            waiting = await asyncio.to_thread(self._not_ready, client)
            if not waiting:
                break
            if time.monotonic() - said_s >= PROGRESS_S:
                said_s = time.monotonic()
                seconds_s = said_s - self._started_s
                self._output.say(f"{seconds_s:3.0f} s: waiting for {', '.join(waiting)}")
            await asyncio.wait(self._tasks, timeout=POLL_S, return_when=asyncio.FIRST_EXCEPTION)

    async def watch(self) -> None:
        """Until the gateway is gone for good, which is a BatonError."""
        await asyncio.wait(self._tasks[:1])
        self._raise_failures()
        raise BatonError("the gateway ended")

    def _not_ready(self, client: GatewayClient) -> list[str]:
        """Names of the processes that are not ready, with what they are doing."""
        try:
            workers = client.status().get("workers", [])
        except BatonError:
            workers = None
        gateway, *children = self.children
        waiting = []
        if workers is None:
            waiting.append(f"{gateway.spec.name} (starting)")
        for child in children:
            state = _state_of(child, workers or [])
            if state == "ready" and not child.was_ready:
                child.was_ready = True
                lived_s = time.monotonic() - child.started_s
                self._output.say(f"{child.spec.name} is ready after {lived_s:.1f} s")
            if state != "ready":
                waiting.append(f"{child.spec.name} ({state})")
        if not waiting and not client.ready():
            waiting.append(f"{gateway.spec.name} (not ready)")
        gateway.was_ready = not waiting
        return waiting

    def _raise_failures(self) -> None:
        for task in self._tasks:
            if task.done() and not task.cancelled():
                error = task.exception()
                if error is not None:
                    raise error
        for child, task in zip(self.children, self._tasks, strict=True):
            if task.done() and not child.was_ready:
                raise BatonError(f"{child.spec.name} ended before it was ready")

    async def _watch_redis(self, redis: EmbeddedRedis) -> None:
        if not redis.running:
            self._output.say("redis ended; starting it again")
            redis.restart()


def _state_of(child: Child, workers: Sequence[dict[str, Any]]) -> str:
    """What the gateway says of the process that runs now, `loading` when nothing."""
    for worker in workers:
        if worker.get("pid") == child.pid and child.pid is not None:
            return str(worker.get("state", "starting"))
    return "loading the model"
