"""Receipts of requests that went through another gateway of the cell."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from shared.errors import StateUnavailableError
from shared.loops import Loops
from shared.state.notes.receipt_calls import LOOK_S, ReceiptCalls

MAX_ASKED = 8
"""at a time: more wait for their turn"""


class OtherReceipts:
    """Asks the other gateways, and answers them. `start` once, `close` once."""

    def __init__(
        self, calls: ReceiptCalls, receipt: Callable[[str], dict[str, Any] | None]
    ) -> None:
        """`receipt`: that this gateway has itself."""
        self._calls = calls
        self._receipt = receipt
        self._places = asyncio.Semaphore(MAX_ASKED)
        self.loops = Loops()

    def start(self) -> None:
        self.loops.start("receipts", self.look, LOOK_S)

    async def close(self) -> None:
        await self.loops.close()

    async def find(self, rid: str) -> dict[str, Any] | None:
        """None if no other gateway has it, or Redis is away."""
        try:
            async with self._places:
                told = await self._calls.ask(rid)
        except StateUnavailableError:
            return None
        found: dict[str, Any] | None = json.loads(told) if told else None
        return found

    async def look(self) -> None:
        """Answer what is asked here. StateUnavailableError."""
        for call in await self._calls.taken():
            receipt = self._receipt(call.rid)
            if receipt is not None:
                await self._calls.tell(call, json.dumps(receipt).encode())
