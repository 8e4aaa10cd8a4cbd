"""Decode's end of the ways by which its mover brings blocks from other hosts.

The pull is a conversation at the source's port, as over tcp. The pool that its blocks lie in stands
on a connection of its own, shared by all pulls of the source.
"""

from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from shared.kv.layout import KVLayout
from shared.transfer.blocks.fetches import Fetchable, FetchedReads, Fetches
from shared.transfer.blocks.progress import Progress
from shared.transfer.blocks.standing import Standing, Stands
from shared.transfer.blocks.verdict import Verdict
from shared.transfer.frame_stream import FrameStream
from shared.transfer.terms import Terms
from shared.transfer.ways.tcp import dial
from shared.transfer_address import TransferAddress


class _FetchablePool(Stands, Fetchable, Protocol):
    """What stands is fetched from."""


Pool = TypeVar("Pool", bound=_FetchablePool)


class NetworkWay(Generic[Pool]):
    """Keeps the promise of `Way`."""

    def __init__(
        self,
        name: str,
        layout: KVLayout,
        begin: Callable[[str, FrameStream], Awaitable[Pool]],
        terms: Terms,
        *,
        in_bursts: bool,
    ) -> None:
        """`begin`: as `Standing` has it. `in_bursts`: as `Reads` has it."""
        self.name = name
        self._layout = layout
        self._terms = terms
        self._in_bursts = in_bursts
        self.pools: Standing[Pool] = Standing(layout.fingerprint(), self.connect, begin)

    async def connect(self, source: TransferAddress) -> FrameStream:
        return await self._terms.introduce(await dial(source, self._terms))

    def reads(self, progress: Progress, stream: FrameStream) -> FetchedReads:
        terms = self._terms
        fetches = Fetches(progress, self.pools.of, self._layout, terms.traffic, terms.limits)
        verdict = Verdict(stream, progress.ledger.num_present_blocks)
        return FetchedReads(self.name, fetches, verdict, in_bursts=self._in_bursts)

    async def close(self) -> None:
        await self.pools.close()
