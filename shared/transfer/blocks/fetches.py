"""Blocks that the mover brings out of the source's pool by itself.

It copies a range and digests what lies in the destination. Nothing but the frames of the
conversation crosses the connection of the pull.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from shared.kv.columns import Words
from shared.kv.layer_groups import GroupRange, layer_groups
from shared.kv.layout import KVLayout
from shared.protocol import Attempt
from shared.transfer.blocks.manifest import Part, Tags
from shared.transfer.blocks.progress import Progress
from shared.transfer.blocks.verdict import Verdict
from shared.transfer.frames import Frame
from shared.transfer.limits import TransferLimits
from shared.transfer.traffic import Traffic
from shared.transfer.transport import PullRequest


class Fetchable(Protocol):
    """The pool of one source."""

    async def fetch(
        self, attempt: Attempt, tags: Tags, blocks: Sequence[int], groups: GroupRange
    ) -> Words:
        """Copy layer groups of the source's blocks into `blocks` of ours; digests [blocks, groups]
        of the copies. A call that is cancelled returns once it touches no block (R18)."""


class Fetches:
    """Of one pull."""

    def __init__(
        self,
        progress: Progress,
        pool_of: Callable[[PullRequest], Awaitable[Fetchable]],
        layout: KVLayout,
        traffic: Traffic,
        limits: TransferLimits,
    ) -> None:
        self._progress = progress
        self._request = progress.request
        self._ledger = progress.ledger
        self._pool_of = pool_of
        self._groups = layer_groups(layout)
        self._traffic = traffic
        self._max_bytes = limits.max_copy_bytes

    async def bring(self) -> None:
        """One copy at a time, of what was published meanwhile as much as lies together."""
        while part := self._ledger.next_read(self._max_bytes, joined=True):
            await self._copy(part)
        self._traffic.rest(self._request.attempt)

    async def _copy(self, part: Part) -> None:
        pool = await self._pool_of(self._request)
        rows, _ = part.cells
        tags = self._ledger.tags_of(part)
        versions = self._ledger.begin(part)
        num_bytes = part.num_blocks * self._groups.num_bytes(part.groups)
        self._traffic.activate(self._request.attempt, num_bytes)
        digests = await pool.fetch(
            self._request.attempt, tags, self._request.block_ids[rows], part.groups
        )
        self._traffic.move(self._request.attempt, num_bytes)
        self._progress.num_bytes += num_bytes
        self._ledger.finish(part, versions, tags, digests)
        self._progress.note_copied()


class FetchedReads:
    """Keeps the promise of `shared.transfer.blocks.progress.Reads`. Whether blocks are fresh the
    source says."""

    def __init__(self, name: str, fetches: Fetches, verdict: Verdict, *, in_bursts: bool) -> None:
        self.name = name
        self.in_bursts = in_bursts
        self._fetches = fetches
        self._verdict = verdict

    async def bring(self) -> None:
        await self._fetches.bring()

    async def take(self, frame: Frame, payload_bytes: int) -> None:
        del payload_bytes
        self._verdict.take(frame)

    async def is_fresh(self, tags: Tags) -> bool:
        return await self._verdict.ask(tags)

    async def settle(self) -> None:
        """Nothing to wait for: a fetch that is cancelled ends before its caller goes on (R18)."""
