"""Receipts that gateways ask each other for.

They know of each other by their beats, and no address: what one wants to know it writes to the
others, which look now and then. The one that has the receipt answers; the rest say nothing.
"""

import asyncio
import secrets
from dataclasses import dataclass

from shared.codec import Codec
from shared.errors import ProtocolError
from shared.state.keys import CALL_TTL_S, Keys
from shared.state.redis_client import RedisClient
from shared.state.reply import as_bytes, as_list, as_text

LOOK_S = 0.25
"""how often a gateway looks whether it is asked"""
WAIT_S = 1.0
"""for the others' answers"""
POLL_S = 0.05
MAX_TAKEN = 64
"""calls in one look"""
MAX_CALLS = 256
"""that a gateway is asked and has not looked at: beyond them the oldest are dropped"""


@dataclass(frozen=True)
class Call:
    """One question. Other releases read it too: a new field comes last and has a default."""

    rid: str
    call: str
    """names the answer"""


_CODEC = Codec((Call,))


class ReceiptCalls:
    """In Redis, as one gateway uses it."""

    def __init__(self, client: RedisClient, keys: Keys, gateway_incarnation: str) -> None:
        self._client = client
        self._keys = keys
        self._gateway_incarnation = gateway_incarnation

    async def ask(self, rid: str) -> bytes | None:
        """The receipt as another gateway has it; None if none of them answers in time.
        StateUnavailableError."""
        others = await self._others()
        if not others:
            return None
        call = secrets.token_hex(16)
        for g_inc in others:
            key = self._keys.receipt_calls(g_inc)
            await self._client.command("RPUSH", key, _CODEC.encode(Call(rid, call)))
            await self._client.command("LTRIM", key, -MAX_CALLS, -1)
            await self._client.command("EXPIRE", key, CALL_TTL_S)
        told_at, told = self._keys.receipt_told(call), None
        deadline_s = asyncio.get_running_loop().time() + WAIT_S
        while told is None and asyncio.get_running_loop().time() < deadline_s:
            await asyncio.sleep(POLL_S)
            told = await self._client.command("GET", told_at)
        return None if told is None else as_bytes(told)

    async def taken(self) -> list[Call]:
        """What this gateway is asked, once. StateUnavailableError."""
        key = self._keys.receipt_calls(self._gateway_incarnation)
        values = await self._client.command("LPOP", key, MAX_TAKEN)
        return [call for value in as_list(values or []) if (call := _decoded(as_bytes(value)))]

    async def tell(self, call: Call, receipt: bytes) -> None:
        """StateUnavailableError."""
        key = self._keys.receipt_told(call.call)
        await self._client.command("SET", key, receipt, "EX", CALL_TTL_S)

    async def _others(self) -> list[str]:
        """Gateways that live, or did a moment ago."""
        names = as_list(await self._client.command("HKEYS", self._keys.beats))
        return [name for name in map(as_text, names) if name != self._gateway_incarnation]


def _decoded(value: bytes) -> Call | None:
    """None: another release's, which cannot be read here."""
    try:
        call: Call = _CODEC.decode(value)
    except ProtocolError:
        return None
    return call
