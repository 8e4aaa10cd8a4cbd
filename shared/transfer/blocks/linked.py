"""Blocks that the source's mover gives over a link, as decode's mover takes them.

The link stands on the connection that showed the pool. What decode asks for there is sent over the
link at once, so neither end waits long for the other; whether blocks are fresh the source says.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from itertools import count
from typing import Any, Protocol, TypeVar

import numpy as np

from shared.errors import CannotMapError, CorruptPieceError, PeerLostError, ProtocolError
from shared.kv.columns import Words, pack_ids, pack_words
from shared.kv.digest import digest_of
from shared.kv.layer_groups import GroupRange, layer_groups
from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory
from shared.kv.probe import Probed
from shared.mover.links.limits import MEET_S
from shared.mover.messages import LINK_BYTES, MAX_DIGESTS
from shared.protocol import Attempt
from shared.tasks import settled
from shared.transfer.blocks.manifest import Part, Tags
from shared.transfer.blocks.mapping import BlockMover
from shared.transfer.frame_stream import FrameStream
from shared.transfer.frames import Card, Give, Invite, Pool, check_card, unpack_give
from shared.transfer.offers import LiveOffer

CANCEL_S = 1.0
"""that what is taken has to come in, once nobody wants it; then the link is given up"""
ANSWER_S = MEET_S
"""an invitation that is not accepted within it has lapsed"""
MAX_AHEAD = 3
"""gives that are asked for before the first is taken"""
MAX_UNANSWERED = 16
"""gives that a reader may have asked for"""
_NUMBERS = count()
Result = TypeVar("Result")
Taking = Callable[[], Coroutine[Any, Any, Result]]
"""by our mover"""


class LinkMover(BlockMover, Protocol):
    """A mover that links to others. PeerLostError, with the cause, where that cannot be done."""

    async def invite(self, peer: str, host: str) -> bytes:
        """Begin a link to a reader, until `unmap`; the card that it accepts with. `host`: the
        address by which it reaches this host."""

    async def accept(self, source: str, num_blocks: int, card: bytes, host: str) -> bytes:
        """Begin the other end; the card that the source meets it with."""

    async def meet(self, peer: str, card: bytes) -> None:
        """Returns once both ends have met."""

    async def give(self, peer: str, blocks: Sequence[int], groups: GroupRange) -> None:
        """Send layer groups of our blocks, at most LINK_BYTES or one block, and MAX_DIGESTS; none:
        our probe."""


def link_of(memory: KVMemory) -> str:
    """By what others link to this pool, which is that of one rank."""
    return "gloo" if memory.holds_blocks else "nccl"


class LinkedPool:
    """The pool of one source; good until it has ended."""

    def __init__(
        self, source: str, mover: LinkMover, layout: KVLayout, stream: FrameStream
    ) -> None:
        self.source = source
        self.probed: Probed
        """what came over the link first, and how fast"""
        self._name = f"linked {source} {next(_NUMBERS)}"
        """nobody's before: the mover may still end the one that was"""
        self._mover = mover
        self._groups = layer_groups(layout)
        self._stream = stream
        self._lost = asyncio.Event()
        self._ended: asyncio.Task[None] | None = None
        self._asking = asyncio.Lock()
        """what is asked for comes in that order"""
        self._ahead = asyncio.Semaphore(MAX_AHEAD)

    @property
    def stands(self) -> bool:
        return not self._lost.is_set()

    async def until_lost(self) -> None:
        await self._lost.wait()

    async def begin(self, pool: Pool, card: bytes) -> None:
        """Link to the source, which was invited with this card. CannotMapError if that fails, or
        a probe of its pool reads wrong."""
        host = self._stream.local_host
        try:
            ours = await self._mover.accept(self._name, pool.num_blocks, card, host)
        except PeerLostError as error:
            raise CannotMapError(str(error)) from None
        await self._stream.send(Card(ours))
        try:
            self.probed = await self._take(Give(b"", 0, 0), partial(self._mover.probe, self._name))
        except CorruptPieceError as error:
            raise CannotMapError(f"the source cannot be linked to: {error}") from None
        if pack_words([self.probed.digest]) != pool.probe:
            raise CannotMapError("a probe of the source's pool brought other bytes")

    async def end(self) -> None:
        """Returns once nothing comes over the link. Safe to call twice."""
        self._lost.set()
        if self._ended is None:
            self._ended = asyncio.create_task(self._end())
        await asyncio.shield(self._ended)

    async def _end(self) -> None:
        with contextlib.suppress(PeerLostError):  # then the mover has forgotten everything
            await self._mover.unmap(self._name)

    async def fetch(
        self, attempt: Attempt, tags: Tags, blocks: Sequence[int], groups: GroupRange
    ) -> Words:
        """What fails costs the link, and the way is blamed for it once."""
        parts = []
        at_once = max(1, LINK_BYTES // self._groups.num_bytes(groups))
        at_once = min(at_once, MAX_DIGESTS // groups.num)
        for start in range(0, len(blocks), at_once):
            theirs = tags.block_ids[start : start + at_once].tolist()
            ours = blocks[start : start + at_once]
            taking = partial(self._mover.fetch, attempt, self._name, theirs, ours, groups)
            part = self._take(Give(pack_ids(theirs), *groups), taking)
            parts.append(asyncio.ensure_future(part))
        try:
            return np.concatenate(await asyncio.gather(*parts))
        except CorruptPieceError as error:
            first, text = self.stands, f"the link to the source is lost: {error}"
            self._lost.set()
            raise (CannotMapError if first else PeerLostError)(text) from None
        finally:
            await settled(parts)

    async def _take(self, give: Give, taking: Taking[Result]) -> Result:
        """Ask for it, and take it: both or neither, or the next one would take the wrong bytes.
        A call that is cancelled returns once the mover is done (R18)."""
        async with self._ahead:
            both = asyncio.ensure_future(self._asked_and_taken(give, taking))
            try:
                return await asyncio.shield(both)
            except asyncio.CancelledError:
                await self._let_go(both)
                raise

    async def _let_go(self, both: "asyncio.Future[Any]") -> None:
        """Returns once it is over, for which the link is given up if that takes long."""
        try:
            await asyncio.wait({both}, timeout=CANCEL_S)
        finally:
            if not both.done():
                await settled([asyncio.ensure_future(self.end())])
            await settled([both])

    async def _asked_and_taken(self, give: Give, taking: Taking[Result]) -> Result:
        async with self._asking:
            taken = asyncio.ensure_future(taking())
            try:
                await self._stream.send(give)
            except PeerLostError:
                await self.end()
                await settled([taken])
                raise
        return await taken


async def linked_pool(
    mover: LinkMover, layout: KVLayout, link: str, source: str, stream: FrameStream
) -> LinkedPool:
    """What the owner shows over the stream, once a probe of it reads right. CannotMapError if it
    cannot be linked to; ProtocolError for what is no pool."""
    pool, _ = await stream.receive()
    if not isinstance(pool, Pool) or pool.num_blocks < 1:
        raise CannotMapError("the source shows no pool")
    if pool.link != link:
        theirs = f"by {pool.link} only" if pool.link else "not at all"
        raise CannotMapError(f"the source can be linked to {theirs}")
    await stream.send(Invite())
    card, _ = await stream.receive()
    if not isinstance(card, Card):
        raise ProtocolError("the source answers an invitation with no card")
    if card.problem:
        raise CannotMapError(f"at the source, {card.problem}")
    check_card(card.card)
    linked = LinkedPool(source, mover, layout, stream)
    try:
        await linked.begin(pool, card.card)
    except BaseException:
        await linked.end()
        raise
    return linked


class Gives:
    """The source's end of all its links."""

    def __init__(self, memory: KVMemory, mover: LinkMover) -> None:
        self.link = link_of(memory)
        self._mover = mover
        self._num_blocks = memory.num_blocks
        self._groups = layer_groups(memory.layout)
        self._numbers = count()

    async def serve(self, stream: FrameStream) -> None:
        """A reader that was shown the pool, until it leaves. ProtocolError for what it must not
        say, PeerLostError once the link does not work any more."""
        peer = f"reader {next(self._numbers)}"
        giving: set[asyncio.Task[None]] = set()
        lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        listening = asyncio.create_task(self._listen(stream, peer, giving, lost))
        try:
            await asyncio.wait({listening, lost}, return_when=asyncio.FIRST_COMPLETED)
            if listening.done():
                listening.result()
            else:
                raise PeerLostError("the link does not work any more")
        finally:
            listening.cancel()
            with contextlib.suppress(PeerLostError):  # then the mover has forgotten everything
                await self._mover.unmap(peer)
            await settled([listening, *giving])

    async def _listen(
        self,
        stream: FrameStream,
        peer: str,
        giving: set[asyncio.Task[None]],
        lost: "asyncio.Future[None]",
    ) -> None:
        """Until the reader leaves. What it asks for is done in the order of its frames: the mover
        takes it so."""

        def begin(doing: Coroutine[Any, Any, None]) -> None:
            task = asyncio.create_task(_until_lost(doing, lost))
            giving.add(task)
            task.add_done_callback(giving.discard)

        if (card := await self._accepted(stream, peer)) is None:
            return
        begin(self._mover.meet(peer, card))
        while await stream.more_comes():
            frame, _ = await stream.receive()
            if not isinstance(frame, Give):
                raise ProtocolError(f"a reader that is linked sends no {type(frame).__name__}")
            blocks, groups = unpack_give(frame)
            if blocks:
                self._check(blocks, groups)
            if len(giving) == MAX_UNANSWERED:
                raise ProtocolError("a reader asks for more than it takes")
            begin(self._mover.give(peer, blocks, groups))

    async def _accepted(self, stream: FrameStream, peer: str) -> bytes | None:
        """The card of a reader that wants a link; None: it leaves without one."""
        if not await stream.more_comes():
            return None
        if not isinstance((await stream.receive())[0], Invite):
            raise ProtocolError("a reader that is to be linked to is invited first")
        await stream.send(await self._card(peer, stream.local_host))
        try:
            async with asyncio.timeout(ANSWER_S):
                if not await stream.more_comes():
                    return None
        except TimeoutError:
            raise ProtocolError("a reader does not accept its invitation") from None
        frame, _ = await stream.receive()
        if not isinstance(frame, Card):
            raise ProtocolError(f"a reader accepts with its card, not {type(frame).__name__}")
        check_card(frame.card)
        return frame.card

    async def _card(self, peer: str, host: str) -> Card:
        try:
            return Card(await self._mover.invite(peer, host))
        except PeerLostError as error:
            return Card(b"", str(error))

    def _check(self, blocks: list[int], groups: GroupRange) -> None:
        """ProtocolError for what the pool has not, or more than goes at once."""
        if max(blocks) >= self._num_blocks:
            raise ProtocolError("a reader asks for a block that the pool does not have")
        if groups.num < 1 or groups.first < 0 or groups.end > len(self._groups):
            raise ProtocolError("a reader asks for layer groups that a block does not have")
        num_bytes = len(blocks) * self._groups.num_bytes(groups)
        too_many = len(blocks) > 1 and num_bytes > LINK_BYTES
        if too_many or len(blocks) * groups.num > MAX_DIGESTS:
            raise ProtocolError("a reader asks for more blocks than go over a link at once")


async def _until_lost(doing: Coroutine[Any, Any, None], lost: "asyncio.Future[None]") -> None:
    """Do it. If it fails the link is lost."""
    try:
        await doing
    except PeerLostError:
        if not lost.done():
            lost.set_result(None)


class LinkedBlocks:
    """Keeps the promise of `shared.transfer.blocks.progress.Served`."""

    def __init__(self, memory: KVMemory, gives: Gives) -> None:
        self._memory = memory
        self._gives = gives
        self._probe = pack_words([digest_of(np.frombuffer(memory.probe, np.uint8))])

    async def send(self, stream: FrameStream, offer: LiveOffer, part: Part) -> None:
        raise ProtocolError("this source sends no blocks over a connection")

    async def show_pool(self, stream: FrameStream) -> None:
        await stream.send(Pool(self._memory.num_blocks, self._probe, link=self._gives.link))
        await self._gives.serve(stream)
