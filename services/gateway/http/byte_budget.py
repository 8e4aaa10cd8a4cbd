"""One limit for all that clients make the gateway hold: bodies, texts in work, live prompts.

Each request has a share. While its body arrives the share grows with what has come, not with what
was announced. Where there is no room, the body that has been still for longest gives way, if it
has been still for STILL_S: a sender that stopped cannot keep the others out.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from shared.errors import OverloadedError

BUDGET_BYTES = 256 * 2**20
"""of a gateway; with the process itself and a copy in work it stays below 512 MiB"""
STILL_S = 1.0
RETRY_AFTER_S = 2.0
TEXT = "this gateway holds as many bytes of requests as it may"


class ByteBudget:
    """What all shares hold together."""

    def __init__(self, limit_bytes: int = BUDGET_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._arriving: dict[ByteShare, asyncio.Timeout] = {}
        """bodies that are not complete, the one that has been still for longest first"""

    def share(self) -> "ByteShare":
        """An empty one; `release` it on every way out."""
        return ByteShare(self)

    def take(self, num_bytes: int) -> None:
        """OverloadedError if they do not fit, whoever gives way."""
        while self.used_bytes + num_bytes > self.limit_bytes:
            if not self._drop_still():
                raise overloaded()
        self.used_bytes += num_bytes

    def give_back(self, num_bytes: int) -> None:
        self.used_bytes -= num_bytes

    def note_arrival(self, share: "ByteShare") -> None:
        """Bytes of its body came just now."""
        if share in self._arriving:
            self._arriving[share] = self._arriving.pop(share)

    @asynccontextmanager
    async def arriving(self, share: "ByteShare") -> AsyncIterator[None]:
        """The body of `share` comes; OverloadedError when it has to give way."""
        try:
            async with asyncio.timeout(None) as way_out:
                self._arriving[share] = way_out
                try:
                    yield
                finally:
                    self._arriving.pop(share, None)
        except TimeoutError:
            if not way_out.expired():
                raise
            raise overloaded() from None

    def _drop_still(self) -> bool:
        """Make the stillest body give way; False if there is none."""
        now_s = asyncio.get_running_loop().time()
        share = next(iter(self._arriving), None)
        if share is None or now_s - share.grown_s < STILL_S:
            return False
        self._arriving.pop(share).reschedule(now_s)
        share.release()
        return True


class ByteShare:
    """What one request holds."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self.num_bytes = 0
        self.grown_s = asyncio.get_running_loop().time()
        """when it last grew, on the event loop's clock"""

    def grow(self, num_bytes: int) -> None:
        """OverloadedError if there is no room."""
        self.grown_s = asyncio.get_running_loop().time()
        self._budget.note_arrival(self)
        self._budget.take(num_bytes)
        self.num_bytes += num_bytes

    def resize(self, num_bytes: int) -> None:
        """From here on it holds this much; OverloadedError if there is no room."""
        self.release()
        self.grow(num_bytes)

    def release(self) -> None:
        """It holds nothing; safe to call twice."""
        self._budget.give_back(self.num_bytes)
        self.num_bytes = 0

    def arriving(self) -> AbstractAsyncContextManager[None]:
        """Around the arrival of its body."""
        return self._budget.arriving(self)


def overloaded() -> OverloadedError:
    return OverloadedError(TEXT, retry_after_s=RETRY_AFTER_S, status=503)
