"""When a request ends whatever its state: counted from its first byte, text work included."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.requests import Request

from services.gateway.http.headers import timeout_s
from services.gateway.http.protocol import began_s
from services.gateway.owner.machine.time_limits import time_is_up
from shared.errors import AttemptError

ENDLESS_S = 1e7
"""no timer is set for what is longer than this"""


@dataclass(frozen=True)
class Deadline:
    """Of one request, on the event loop's clock."""

    limit_s: float
    """from the first byte; may be infinite"""
    at_s: float

    @classmethod
    def of(cls, request: Request, setting_s: float) -> "Deadline":
        """What the request's header says, up to the gateway's setting (0 = no limit)."""
        limit_s = timeout_s(request, setting_s)
        return cls(limit_s, began_s(request.scope) + limit_s)

    def left_s(self) -> float:
        """What the rest may take; never below 0, may be infinite."""
        return max(0.0, self.at_s - asyncio.get_running_loop().time())

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Ends what runs inside when the time is up: AttemptError 504."""
        try:
            async with asyncio.timeout_at(self.at_s if self.limit_s < ENDLESS_S else None) as timer:
                yield
        except TimeoutError:
            if not timer.expired():
                raise
            failure = time_is_up(self.limit_s)
            raise AttemptError(failure.message, code=failure.code, status=failure.status) from None
