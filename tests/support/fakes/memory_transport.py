"""The hand-over inside one process: the reference that `tcp` is compared with.

Same offers, same ledger, same order of events; instead of frames, prefill's table is asked
directly and blocks are copied half by half, with other tasks running in between.
"""

import asyncio
import contextlib

from shared.clock import Clock, SystemClock
from shared.errors import KVTransferError, PeerLostError
from shared.kv.digest import BlockDigests
from shared.kv.layer_groups import layer_groups
from shared.kv.memory import KVMemory
from shared.loops import Loops
from shared.protocol import Attempt
from shared.tasks import Tasks
from shared.transfer.blocks.ledger import PullLedger
from shared.transfer.blocks.manifest import Part
from shared.transfer.digest_threads import DigestThreads
from shared.transfer.failure import check_verdict, pull_failure, raise_refusal
from shared.transfer.frames import Open
from shared.transfer.limits import TransferLimits
from shared.transfer.offers import Digester, LiveOffer, OfferState, OfferTable
from shared.transfer.slots import Slots
from shared.transfer.traffic import Traffic
from shared.transfer.transport import Offer, OnRelease, Pulled, PullRequest
from shared.transfer_address import NOWHERE, TransferAddress


class MemoryNetwork:
    """Which transport answers at which address."""

    def __init__(self) -> None:
        self._by_address: dict[str, MemoryTransport] = {}
        self._num_joined = 0

    def join(self, transport: "MemoryTransport") -> str:
        """A new address, never used before."""
        self._num_joined += 1
        address = f"memory:{self._num_joined}"
        self._by_address[address] = transport
        return address

    def leave(self, address: str) -> None:
        self._by_address.pop(address, None)

    def at(self, address: str) -> "MemoryTransport":
        transport = self._by_address.get(address)
        if transport is None:
            raise PeerLostError("nobody answers at the source address")
        return transport


class MemoryTransport:
    """Keeps the promise of `shared.transfer.transport.KVTransport`."""

    ways = ("memory",)

    def __init__(
        self,
        memory: KVMemory,
        incarnation: str,
        network: MemoryNetwork,
        *,
        digester: Digester | None = None,
        limits: TransferLimits | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`digester`: of blocks that are offered; default: threads, which know no steps."""
        self.memory = memory
        self.incarnation = incarnation
        self._network = network
        self.limits = limits or TransferLimits()
        self._clock = clock or SystemClock()
        self.traffic = Traffic(self._clock)
        self._threads = DigestThreads(memory)
        self.digests = BlockDigests.of_pool(memory)
        digester = digester or self._threads
        self.table = OfferTable(memory, self.limits.lease_s, self._clock, digester)
        self._slots = Slots(self.limits.max_pulls)
        self._tasks = Tasks()
        self.loops = Loops(self._clock)
        self._address = NOWHERE

    @property
    def on_release(self) -> OnRelease:
        return self.table.on_release

    @on_release.setter
    def on_release(self, on_release: OnRelease) -> None:
        self.table.on_release = on_release

    @property
    def address(self) -> TransferAddress:
        return self._address

    async def start(self) -> None:
        self._address = TransferAddress(self._network.join(self))
        self.table.start(self.loops)

    def offer(self, attempt: Attempt, ticket: str) -> Offer:
        return self.table.open(attempt, ticket)

    async def pull(self, request: PullRequest) -> Pulled:
        return await self._tasks.run(self._pull(request))

    async def keep(self, request: PullRequest) -> None:
        await self._tasks.run(self._keep(request))

    async def close(self) -> None:
        self._network.leave(self._address.port)
        await self.loops.close()
        await self._tasks.close()
        self.table.close()
        self._threads.close()

    async def reach(self, point: str) -> bool:
        """Called where `tcp` sends the frame of that name, and in the middle of each block;
        whether the frame arrives."""
        del point
        await asyncio.sleep(0)
        return True

    async def _keep(self, request: PullRequest) -> None:
        await asyncio.sleep(self.limits.renew_every_s)
        with contextlib.suppress(KVTransferError):
            source = self._network.at(request.source.port)
            await self._pull_from(source, request).keep()

    async def _pull(self, request: PullRequest) -> Pulled:
        pull = self._pull_from(self._network.at(request.source.port), request)
        try:
            return await pull.run()
        except* KVTransferError as group:
            failure = pull_failure(group)
        raise failure

    def _pull_from(self, source: "MemoryTransport", request: PullRequest) -> "_MemoryPull":
        slots = self._slots.of(request.source_incarnation)
        return _MemoryPull(request, self, source, slots, self._clock)


class _MemoryPull:
    """One pull: `ours` is the destination's transport, `source` the other side's."""

    def __init__(
        self,
        request: PullRequest,
        ours: MemoryTransport,
        source: MemoryTransport,
        slots: asyncio.Semaphore,
        clock: Clock,
    ) -> None:
        self._request = request
        self._ours = ours
        self._source = source
        self._slots = slots
        self._clock = clock
        self._groups = layer_groups(ours.memory.layout)
        num_blocks = len(request.block_ids)
        self._ledger = PullLedger(num_blocks, request.num_present_blocks, self._groups)
        self._changed = asyncio.Event()
        self._num_bytes = 0
        self._sealed_ns = clock.wall_ns()

    async def keep(self) -> None:
        """Renew the lease and read nothing, until cancelled."""
        await self._renew(await self._open())

    async def run(self) -> Pulled:
        offer = await self._open()
        self._source.traffic.forget(self._request.attempt)
        offer.watchers.add(self._changed)
        try:
            async with asyncio.TaskGroup() as group:
                renewing = group.create_task(self._renew(offer))
                pulled = await self._read_all(offer)
                renewing.cancel()
        finally:
            offer.watchers.discard(self._changed)
        return pulled

    async def _open(self) -> LiveOffer:
        request = self._request
        await self._ours.reach("open")
        admitted = self._source.table.admit(
            Open(
                request.attempt,
                request.ticket,
                request.source_incarnation,
                self._ours.memory.layout.fingerprint(),
            ),
            self._source.incarnation,
        )
        if not isinstance(admitted, LiveOffer):
            raise_refusal(admitted)
        return admitted

    async def _read_all(self, offer: LiveOffer) -> Pulled:
        start_ns = self._clock.wall_ns()
        num_told = 0
        while not self._ledger.idle:
            self._changed.clear()
            num_told = await self._hear(offer, num_told)
            if offer.state is OfferState.ENDED:
                return self._pulled(offer, start_ns)
            part = self._ledger.next_read(1)
            if part is not None:
                await self._copy(offer, part)
            elif not self._ledger.idle:
                await self._changed.wait()
        await self._ours.reach("verify")
        fresh = self._source.table.is_fresh(
            offer, self._ledger.num_present_blocks, self._ledger.tags()
        )
        await self._source.reach("verified")
        check_verdict(fresh, self._ledger.complete)
        pulled = self._pulled(offer, start_ns)
        if await self._ours.reach("release"):
            self._source.table.release(offer)
        return pulled

    async def _hear(self, offer: LiveOffer, num_told: int) -> int:
        """Note what was published since `num_told`, and the seal; returns the new count."""
        for publication in offer.publications[num_told:]:
            await self._source.reach("watermark")
            self._ledger.publish(publication)
            num_told += 1
        if offer.refusal is not None:
            raise_refusal(offer.refusal)
        if offer.state is OfferState.SEALED and not self._ledger.sealed:
            await self._source.reach("seal")
            self._sealed_ns = self._clock.wall_ns()
            self._ledger.seal(offer.manifest.tags, offer.manifest.digests)
        return num_told

    async def _copy(self, offer: LiveOffer, part: Part) -> None:
        self._ours.traffic.wait(self._request.attempt)
        async with self._slots:
            self._ours.traffic.begin(self._request.attempt)
            self._ours.traffic.activate(self._request.attempt)
            try:
                await self._copy_block(offer, part)
            finally:
                self._ours.traffic.rest(self._request.attempt)

    async def _copy_block(self, offer: LiveOffer, part: Part) -> None:
        await self._ours.reach("read")
        tags = offer.tags(part)
        assert tags is not None
        span = self._groups.span(part.groups)
        source = self._source.memory.block(int(tags.block_ids[0]))[span]
        block_id = self._request.block_ids[part.first_block]
        destination = self._ours.memory.block(block_id)[span]
        half = len(source) // 2
        versions = self._ledger.begin(part)
        await self._source.reach("blocks")
        destination[:half] = source[:half]
        await self._source.reach("half_read")
        destination[half:] = source[half:]
        self._num_bytes += len(source)
        for traffic in (self._ours.traffic, self._source.traffic):
            traffic.move(self._request.attempt, len(source))
        digests = self._ours.digests.of([block_id], part.groups)
        self._ledger.finish(part, versions, tags, digests)

    def _pulled(self, offer: LiveOffer, start_ns: int) -> Pulled:
        return Pulled(
            run=offer.run,
            num_bytes=self._num_bytes,
            num_blocks=self._ledger.num_read_blocks,
            start_ns=start_ns,
            sealed_ns=self._sealed_ns,
            end_ns=self._clock.wall_ns(),
            transport="memory",
            num_reread=self._ledger.num_reread,
        )

    async def _renew(self, offer: LiveOffer) -> None:
        while True:
            await asyncio.sleep(self._ours.limits.renew_every_s)
            if await self._ours.reach("renew"):
                self._source.table.renew(offer)
                self._source.traffic.num_signs += 1
