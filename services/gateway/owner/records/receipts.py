"""What happened to each of the last requests."""

import asyncio
import contextlib
import zlib
from collections import OrderedDict, deque
from typing import Any, NamedTuple

import msgpack

from services.gateway.owner.records.group_receipt import group_body
from services.gateway.owner.records.receipt import Receipt
from services.gateway.owner.records.row import Row

MAX_RECEIPTS = 1000
MAX_OPEN = 128
"""of these, the latest that may still hear of a span; the rest are kept as bytes"""


class Packed(NamedTuple):
    """A receipt that changes no more."""

    packed: bytes
    row: Row

    @classmethod
    def of(cls, receipt: Receipt) -> "Packed":
        """As objects it takes five times the memory."""
        packed: bytes = msgpack.packb(receipt.as_dict())
        return cls(zlib.compress(packed, 1), Row.of(receipt))

    def as_dict(self) -> dict[str, Any]:
        """What the receipt said."""
        said: dict[str, Any] = msgpack.unpackb(zlib.decompress(self.packed))
        return said


class Receipts:
    """The last thousand, by rid, and which of them belong to one HTTP request. Live requests, and
    members of a live group, are kept past that limit: their client may ask for them."""

    def __init__(self, max_receipts: int = MAX_RECEIPTS, max_open: int = MAX_OPEN) -> None:
        self._max_receipts = max_receipts
        self._max_open = max_open
        self._by_rid: OrderedDict[str, Receipt | Packed] = OrderedDict()
        self._open: deque[Receipt] = deque()
        self._groups: OrderedDict[str, list[str]] = OrderedDict()
        self._group_of: dict[str, str] = {}

    def add(self, receipt: Receipt) -> None:
        self._by_rid[receipt.rid] = receipt
        self._open.append(receipt)
        if receipt.group:
            self._groups.setdefault(receipt.group, []).append(receipt.rid)
            self._group_of[receipt.rid] = receipt.group
        if len(self._open) > self._max_open:
            self._pack(self._open.popleft())
        for _ in range(len(self._by_rid) - self._max_receipts):
            self._forget_oldest()

    def get(self, rid: str) -> Receipt | None:
        """One that may still change."""
        found = self._by_rid.get(rid)
        return found if isinstance(found, Receipt) else None

    def body(self, rid: str) -> dict[str, Any] | None:
        """What `/v1/baton/requests/{id}` says of it, or of a group."""
        members = [self.body(member) for member in self._groups.get(rid, ())]
        known = [member for member in members if member is not None]
        if known:
            return group_body(rid, known)
        found = self._by_rid.get(rid)
        return None if found is None else found.as_dict()

    def rows(self) -> list[Row]:
        """A line for each that is kept."""
        return [
            kept.row if isinstance(kept, Packed) else Row.of(kept) for kept in self._by_rid.values()
        ]

    async def wait_complete(self, rid: str, limit_s: float) -> None:
        """Until workers have told all that the body needs, of each member of a group too."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                for member in self._groups.get(rid, (rid,)):
                    receipt = self.get(member)
                    if receipt is not None and not receipt.complete:
                        receipt.told = asyncio.Event()
                        await receipt.told.wait()

    def _forget_oldest(self) -> None:
        """Or call it the newest, if it is wanted."""
        rid = next(iter(self._by_rid))
        group = self._group_of.get(rid, "")
        members = self._groups.get(group, [rid])
        if any(receipt and not receipt.ended_ns for receipt in map(self.get, members)):
            self._by_rid.move_to_end(rid)
            return
        del self._by_rid[rid]
        self._group_of.pop(rid, None)
        members.remove(rid)
        if not members:
            self._groups.pop(group, None)

    def _pack(self, receipt: Receipt) -> None:
        if not receipt.ended_ns:
            self._open.append(receipt)
        elif receipt.rid in self._by_rid:
            self._by_rid[receipt.rid] = Packed.of(receipt)
