"""What was recorded of each request, read from Redis while it is there: a record stays a minute."""

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass

from services.cli.chaos.attempt import OK, Attempt
from services.cli.chaos.cell import Cell
from services.cli.chaos.load import Asked, Load
from shared.errors import BatonError
from shared.state.keys import Keys
from shared.state.records import UNFINISHED
from shared.state.reply import as_bytes, as_list

EVERY_S = 1.0
PATIENCE_S = 20.0
"""from an attempt's end on: its gateway may wait for Redis, or may be gone and be reaped, by one
that has lived for so long itself"""
FIELDS = ("state", "num_output_tokens", "num_attempts")


@dataclass(frozen=True)
class Record:
    """Of one attempt of a client, which the system knows as one request."""

    state: str
    num_tokens: int
    """delivered, as far as is known"""
    num_attempts: int
    """of the system: more than one where a fault hit it"""

    @property
    def is_final(self) -> bool:
        return self.state not in UNFINISHED

    @property
    def num_billed(self) -> int:
        """One that its gateway left behind is not billed."""
        return self.num_tokens if self.is_final else 0


class Ledger:
    """Records by request id. None: there was none, and nothing explains it; not in it: Redis lost
    its data meanwhile, or nobody was admitted."""

    def __init__(self, cell: Cell, load: Load) -> None:
        self.records: dict[str, Record | None] = {}
        self._cell = cell
        self._load = load
        self._keys = Keys()
        self._num_read = 0
        self._waiting: list[Attempt] = []

    def of(self, asked: Asked) -> dict[str, Record | None]:
        """Records of its attempts; where Redis lost its data meanwhile only that of the last one:
        what came before is forgotten, and may be done and billed once more."""
        begin_s, end_s = asked.attempts[0].sent_s, asked.last.end_s
        lost = any(begin_s < lost_s < end_s for lost_s in self._cell.data_losses_s)
        rids = [one.rid for one in (asked.attempts[-1:] if lost else asked.attempts)]
        return {rid: self.records[rid] for rid in rids if rid in self.records}

    async def keep(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            with suppress(BatonError):
                await self.read()

    async def settle(self, limit_s: float) -> bool:
        """Until all that ended is read; whether it was in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while self._waiting or self._num_read < len(self._load.ended):
                    with suppress(BatonError):
                        await self.read()
                    await asyncio.sleep(EVERY_S)
                return True
        return False

    async def read(self) -> None:
        """What has ended since. BatonError without Redis."""
        ended = self._load.ended[self._num_read :]
        self._num_read += len(ended)
        self._waiting += [one for one in ended if one.rid]
        self._waiting = [one for one in self._waiting if not await self._is_read(one)]

    async def _is_read(self, attempt: Attempt) -> bool:
        if any(lost_s > attempt.sent_s for lost_s in self._cell.data_losses_s):
            return True
        key = self._keys.request(attempt.rid)
        values = as_list(await self._cell.state.command("HMGET", key, *FIELDS))
        state, tokens, attempts = ((as_bytes(one) if one else b"").decode() for one in values)
        record = Record(state, int(tokens or 0), int(attempts or 0)) if state else None
        if record is None or not record.is_final:
            waited_s = min(time.monotonic() - attempt.end_s, self._cell.gateways_lived_s())
            if waited_s <= PATIENCE_S:
                return False
        if record is not None or attempt.status == OK:  # what was refused need have no record
            self.records[attempt.rid] = record
        return True
