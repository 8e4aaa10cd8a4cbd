"""Writes ADMIT and FINISH to Redis in the background, never in a request's way (R4).

A FINISH that Redis does not take waits its turn in memory, at most MAX_UNWRITTEN of them: an
outage costs the oldest records, never the gateway's memory. Their keys expire by themselves.
"""

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Callable

from shared.errors import BatonError, StateRefusedError
from shared.loops import Loops
from shared.repeats import Repeats
from shared.state.records import (
    Admission,
    AdmittedRequest,
    KeyTaken,
    Outcome,
    RequestRecords,
)
from shared.tasks import Tasks

logger = logging.getLogger(__name__)

Told = Callable[[Admission | KeyTaken | None], None]
"""what ADMIT found; None: Redis did not answer as it should, so it may have happened or not"""
FINISH_WAIT_S = 0.25
"""how long the end of an answer waits for FINISH"""
MAX_UNWRITTEN = 10_000
"""some 10 MiB"""
_CLOSE_GRACE_S = 2.0
_CLOSE_POLL_S = 0.05


class RecordWriter:
    """Owns the calls in flight. Callbacks run on the event loop."""

    def __init__(self, records: RequestRecords) -> None:
        self._records = records
        self._tasks = Tasks()
        self._unwritten: OrderedDict[str, tuple[AdmittedRequest, Outcome]] = OrderedDict()
        """by rid, the oldest first"""
        self._changed = asyncio.Event()
        self._repeats = Repeats()
        self.num_dropped = 0
        """outcomes that were never written"""

    @property
    def num_unwritten(self) -> int:
        """Outcomes that wait for Redis."""
        return len(self._unwritten)

    def start(self, loops: Loops) -> None:
        loops.start("finish", self._write_oldest)

    def admit(self, request: AdmittedRequest, answered: Told, max_live: int = 0) -> None:
        """ADMIT. `max_live`: requests of its tenant; 0: no limit."""
        self._tasks.start(self._admit(request, answered, max_live))

    def finish(
        self, request: AdmittedRequest, outcome: Outcome, answered: Callable[[], None]
    ) -> None:
        """Step 9: FINISH, again and again while Redis does not take it. `answered` runs once it is
        written, at the latest after FINISH_WAIT_S; twice when Redis answers just then."""
        self._tasks.start(self._finish(request, outcome, answered))

    async def close(self) -> None:
        """Give outstanding calls a moment, then drop them. `loops` must still run."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_GRACE_S):
                await self._tasks.drain(_CLOSE_GRACE_S)
                while self._unwritten:  # noqa: ASYNC110 -- 50 ms is soon enough
                    await asyncio.sleep(_CLOSE_POLL_S)
        await self._tasks.close()

    async def _admit(self, request: AdmittedRequest, answered: Told, max_live: int) -> None:
        try:
            admission = await self._records.admit(request, max_live)
        except StateRefusedError:
            answered(Admission.REFUSES_WRITES)
        except BatonError:
            answered(None)
        except Exception:
            answered(None)  # whatever it is, the client must not wait for it
            raise
        else:
            answered(admission)

    async def _finish(
        self, request: AdmittedRequest, outcome: Outcome, answered: Callable[[], None]
    ) -> None:
        late = asyncio.get_running_loop().call_later(FINISH_WAIT_S, answered)
        try:
            await self._write(request, outcome)
        except BatonError:
            self._keep(request, outcome)
        else:
            late.cancel()
            answered()

    def _keep(self, request: AdmittedRequest, outcome: Outcome) -> None:
        self._unwritten[request.rid] = request, outcome
        if len(self._unwritten) > MAX_UNWRITTEN:
            self._unwritten.popitem(last=False)
            self.num_dropped += 1
            if count := self._repeats.due("dropped"):
                logger.error("redis is away too long: %d outcomes are not recorded", count)
        self._changed.set()

    async def _write_oldest(self) -> None:
        """A turn of the loop."""
        while not self._unwritten:
            self._changed.clear()
            await self._changed.wait()
        rid, (request, outcome) = next(iter(self._unwritten.items()))
        try:
            await self._write(request, outcome)
        except Exception:
            self._unwritten.move_to_end(rid)  # the others need not wait for this one
            raise
        self._unwritten.pop(rid, None)

    async def _write(self, request: AdmittedRequest, outcome: Outcome) -> None:
        finish = await self._records.finish(request, outcome)
        if finish.outcome != outcome:
            logger.warning("record of %s says otherwise", request.rid)
