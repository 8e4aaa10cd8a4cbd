"""The io process's end of the data socket: asks the mover and awaits its answers."""

import asyncio
import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count

import numpy as np

from shared.errors import CorruptPieceError, PeerLostError
from shared.kv.columns import Words, pack_ids, pack_words, unpack_words
from shared.kv.layer_groups import GroupRange
from shared.kv.probe import Probed
from shared.mover.messages import (
    CODEC,
    MAX_DIGESTS,
    MAX_PACKET_BYTES,
    Accept,
    Digest,
    Done,
    Expect,
    Fetch,
    Fill,
    Give,
    GiveUp,
    Invite,
    Join,
    LastFetch,
    Map,
    Meet,
    Probe,
    Question,
    Show,
    Stage,
    TokenPlace,
    Unmap,
    Watch,
)
from shared.protocol import Attempt
from shared.tasks import settled


class MoverClient:
    """All calls on the event loop. PeerLostError once the engine process is gone.

    A call that is cancelled returns only once the mover has done what it was asked: from then on
    nothing touches the blocks any more (R18)."""

    def __init__(self, sock: socket.socket) -> None:
        """Takes over io's end of the socket pair that the engine process was started with."""
        self._socket = sock
        self._loop = asyncio.get_running_loop()
        self._sending = asyncio.Lock()
        self._numbers = count()
        self._asked: dict[int, asyncio.Future[Done]] = {}
        self._lost = False
        sock.setblocking(False)
        self._loop.add_reader(sock, self._receive)

    async def map(self, source: str, num_blocks: int, descriptors: Sequence[int]) -> None:
        """Map another worker's pool. The descriptors stay the caller's. PeerLostError if it
        cannot be mapped."""
        done = await self._ask(Map(next(self._numbers), source, num_blocks), descriptors)
        if done.problem:
            raise PeerLostError(done.problem)

    async def watch(self, source: str, num_blocks: int, table: int) -> None:
        """From now until `unmap` token 1 of attempts can be expected from this source. `table`: the
        file that its generations begin and its first tokens end; stays the caller's. PeerLostError
        if it cannot be mapped."""
        done = await self._ask(Watch(next(self._numbers), source, num_blocks), [table])
        if done.problem:
            raise PeerLostError(done.problem)

    async def expect(self, attempt: Attempt, source: str, token_1: TokenPlace) -> None:
        """See LastFetch: all KV of the attempt is here."""
        await self._ask(Expect(next(self._numbers), attempt, source, token_1))

    async def give_up(self, attempt: Attempt) -> bool:
        """Whether the engine has not begun, and will not."""
        return not (await self._ask(GiveUp(next(self._numbers), attempt))).problem

    async def show(self, name: str) -> bytes:
        """The card by which workers of other hosts read our pool. PeerLostError if they cannot."""
        return await self._card(Show(next(self._numbers), name))

    async def join(self, name: str, source: str, num_blocks: int, card: bytes) -> None:
        """Get ready to read another worker's pool by its card; from then on it can be probed,
        fetched from and unmapped as one that is mapped. PeerLostError if it cannot be read."""
        done = await self._ask(Join(next(self._numbers), name, source, num_blocks, card))
        if done.problem:
            raise PeerLostError(done.problem)

    async def invite(self, peer: str, host: str) -> bytes:
        """Begin a link to a worker that reads our pool, until `unmap`: the card that it accepts
        with. `host`: the address by which it reaches this host. PeerLostError if there can be no
        link."""
        return await self._card(Invite(next(self._numbers), peer, host))

    async def accept(self, source: str, num_blocks: int, card: bytes, host: str) -> bytes:
        """Begin the other end; the card that the source meets it with. From then on the source is
        probed, fetched from and unmapped as one that is mapped, if it gives as much meanwhile.
        PeerLostError if there can be no link."""
        return await self._card(Accept(next(self._numbers), source, num_blocks, card, host))

    async def meet(self, peer: str, card: bytes) -> None:
        """Returns once both ends of the link have met. PeerLostError if they do not."""
        done = await self._ask(Meet(next(self._numbers), peer, card))
        if done.problem:
            raise PeerLostError(done.problem)

    async def give(self, peer: str, blocks: Sequence[int], groups: GroupRange) -> None:
        """Send layer groups of blocks of our own pool over a link, as `LINK_BYTES` bounds them;
        none: what follows the last block. PeerLostError if the link does not work any more."""
        done = await self._ask(Give(next(self._numbers), peer, pack_ids(blocks), *groups))
        if done.problem:
            raise PeerLostError(done.problem)

    async def unmap(self, source: str) -> None:
        """Returns once nothing of that pool is mapped, or read, and nothing is given to it."""
        await self._ask(Unmap(next(self._numbers), source))

    async def probe(self, source: str) -> Probed:
        """Read what follows the last block of a mapped pool. CorruptPieceError if it could not be
        done."""
        done = await self._ask(Probe(next(self._numbers), source))
        (digest,) = _digests(done, 1)[0].tolist()
        return Probed(digest, done.num_bytes, done.seconds)

    async def fetch(
        self,
        attempt: Attempt,
        source: str,
        source_blocks: Sequence[int],
        blocks: Sequence[int],
        groups: GroupRange,
        last: LastFetch | None = None,
    ) -> Words:
        """Copy layer groups of blocks of a mapped pool into `blocks`; the digests [blocks, groups]
        of what lies there now. CorruptPieceError if it could not be done. `last`: with them the
        engine may begin as soon as the source, which is watched, shows token 1."""
        in_one = last is not None and len(blocks) * groups.num <= MAX_DIGESTS
        found = []
        for some in _turns(len(blocks), groups):
            sources, ours = pack_ids(source_blocks[some]), pack_ids(blocks[some])
            fetch = Fetch(next(self._numbers), attempt, source, sources, ours, *groups)
            if last is not None and in_one:
                fetch = replace(fetch, token_1=last.token_1, digests=pack_words(last.digests))
            found.append(_digests(await self._ask(fetch), len(blocks[some])))
        digests = np.concatenate(found)
        if last is not None and not in_one and np.array_equal(digests, last.digests):
            await self.expect(attempt, source, last.token_1)
        return digests

    async def digests(self, blocks: Sequence[int], groups: GroupRange, step: int | None) -> Words:
        """[blocks, groups], of blocks of our own pool, now; of a step, of the first groups only,
        one at least, once it has written them."""
        found = []
        for some in _turns(len(blocks), groups):
            digest = Digest(next(self._numbers), pack_ids(blocks[some]), *groups, step)
            found.append(_digests(await self._ask(digest), len(blocks[some])))
            # The others are to be of the same groups, and the step has written them.
            groups, step = GroupRange(groups.first, found[0].shape[1]), None
        return np.concatenate(found)

    async def stage(self, blocks: Sequence[int], groups: GroupRange, room: slice) -> None:
        """Copy layer groups of blocks of our own GPU's pool into these bytes of the arena.
        CorruptPieceError if it could not be done."""
        block_bytes = (room.stop - room.start) // len(blocks)
        for some in _turns(len(blocks), groups):
            offset = room.start + some.start * block_bytes
            stage = Stage(next(self._numbers), pack_ids(blocks[some]), *groups, offset)
            if problem := (await self._ask(stage)).problem:
                raise CorruptPieceError(problem)

    async def fill(
        self, attempt: Attempt, blocks: Sequence[int], groups: GroupRange, room: slice
    ) -> Words:
        """Copy what lies in these bytes of the arena into `blocks`; the digests [blocks, groups]
        of what lies there now. CorruptPieceError if it could not be done."""
        block_bytes = (room.stop - room.start) // len(blocks)
        found = []
        for some in _turns(len(blocks), groups):
            offset, ids = room.start + some.start * block_bytes, pack_ids(blocks[some])
            fill = Fill(next(self._numbers), attempt, ids, *groups, offset)
            found.append(_digests(await self._ask(fill), len(blocks[some])))
        return np.concatenate(found)

    def close(self) -> None:
        """Safe to call twice. The mover ends, and unmaps everything."""
        self._lose()

    async def _card(self, question: Show | Invite | Accept) -> bytes:
        done = await self._ask(question)
        if done.problem:
            raise PeerLostError(done.problem)
        return done.card

    async def _ask(self, question: Question, descriptors: Sequence[int] = ()) -> Done:
        answered: asyncio.Future[Done] = self._loop.create_future()
        async with self._sending:
            await self._send(question, descriptors)
            self._asked[question.number] = answered
        try:
            return await asyncio.shield(answered)
        except asyncio.CancelledError:
            await settled([answered])
            raise

    async def _send(self, question: Question, descriptors: Sequence[int]) -> None:
        packet = CODEC.encode(question)
        while not self._lost:
            try:
                socket.send_fds(self._socket, [packet], descriptors)
            except BlockingIOError:
                await self._writable()
            except OSError:
                self._lose()
            else:
                return
        raise PeerLostError("the engine process is gone")

    async def _writable(self) -> None:
        ready = asyncio.Event()
        self._loop.add_writer(self._socket, ready.set)
        try:
            await ready.wait()
        finally:
            self._loop.remove_writer(self._socket)

    def _receive(self) -> None:
        try:
            packet = self._socket.recv(MAX_PACKET_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            packet = b""
        if not packet:
            self._lose()
            return
        done: Done = CODEC.decode(packet)
        self._asked.pop(done.number).set_result(done)

    def _lose(self) -> None:
        if self._lost:
            return
        self._lost = True
        self._loop.remove_reader(self._socket)
        self._socket.close()
        asked, self._asked = self._asked, {}
        for answered in asked.values():
            answered.set_exception(PeerLostError("the engine process is gone"))


def _turns(num_blocks: int, groups: GroupRange) -> Iterator[slice]:
    """As many blocks at a time as one message may name."""
    step = MAX_DIGESTS // groups.num
    for start in range(0, num_blocks, step):
        yield slice(start, start + step)


def _digests(done: Done, num_blocks: int) -> Words:
    """[blocks, groups]."""
    if done.problem:
        raise CorruptPieceError(done.problem)
    return unpack_words(done.digests, num_blocks)


def data_socket_pair() -> tuple[socket.socket, socket.socket]:
    """io's end and the mover's."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
