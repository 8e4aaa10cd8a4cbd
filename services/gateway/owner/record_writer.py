"""Writes ADMIT and FINISH to Redis beside the request, never in its way (R4)."""

import asyncio
import logging
from collections.abc import Callable

from services.gateway.owner.background import Background
from shared.errors import BatonError, StateRefusedError
from shared.state.records import Admission, AdmittedRequest, Finish, Outcome, RequestRecords

logger = logging.getLogger(__name__)

FINISH_WAIT_S = 0.25
"""how long the last tokens wait for FINISH"""
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_CLOSE_GRACE_S = 2.0


class RecordWriter:
    """Owns the calls in flight. Callbacks run on the event loop."""

    def __init__(self, records: RequestRecords) -> None:
        self._records = records
        self._background = Background()

    @property
    def num_unwritten(self) -> int:
        """Calls that Redis has not acknowledged."""
        return len(self._background)

    def admit(self, request: AdmittedRequest, answered: Callable[[Admission | None], None]) -> None:
        """ADMIT; None: Redis did not answer as it should, so it may have happened or not."""
        self._background.spawn(self._admit(request, answered))

    def finish(
        self, request: AdmittedRequest, outcome: Outcome, answered: Callable[[], None]
    ) -> None:
        """FINISH until acknowledged. `answered` runs then, and before that after FINISH_WAIT_S:
        twice when Redis is late."""
        self._background.spawn(self._finish(request, outcome, answered))

    def admit_again(self, requests: list[AdmittedRequest]) -> None:
        """Redis lost its data: write what lives once more."""
        for request in requests:
            self._background.spawn(self._admit(request, lambda _: None))

    async def close(self) -> None:
        """Give outstanding calls a moment, then drop them."""
        await self._background.drain(_CLOSE_GRACE_S)
        await self._background.close()

    async def _admit(
        self, request: AdmittedRequest, answered: Callable[[Admission | None], None]
    ) -> None:
        try:
            admission = await self._records.admit(request)
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
        finish = await self._write_finish(request, outcome)
        if finish.outcome != outcome:
            logger.warning("record of %s says otherwise", request.rid)
        late.cancel()
        answered()

    async def _write_finish(self, request: AdmittedRequest, outcome: Outcome) -> Finish:
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return await self._records.finish(request, outcome)
            except BatonError:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
