"""The hand-over that a worker makes before it is ready.

It asks for it as a gateway does, of a peer and of itself: the one that is a prefill worker computes
a prompt of one block, the other pulls and verifies its KV. So a canary takes the path of requests,
to the blocks that engines give to requests, and costs a peer what a request of one block does.
Peers are tried in turn, and one that hands over is enough. Where there is none this worker pulls
from itself.
"""

import asyncio
import logging
import secrets
from contextlib import AbstractAsyncContextManager, AsyncExitStack

from shared.errors import BatonError
from shared.message_parts.span import Span
from shared.protocol import Hello
from shared.state.registry import WorkerEntry, WorkerRegistry
from shared.telemetry.attributes import TRANSFER_BYTES, TRANSFER_TRANSPORT
from shared.transfer.transport import KVTransport
from shared.worker.canary.asked_worker import AskedWorker, NoPartError
from shared.worker.canary.hand_over import hand_over
from shared.worker.canary.loopback import loop_back, why_not
from shared.worker.canary.peer import Peer, peers_of, reason_of
from shared.worker.canary.prompt import canary_prompt
from shared.worker.canary.reservation import Reservation
from shared.worker.channel import Event
from shared.worker.engine_sender import EngineSender

logger = logging.getLogger(__name__)

RETRY_S = 3.0
"""between two rounds"""
LIMIT_S = 30.0
"""with one peer: there the canary waits behind requests for its step and its block"""
ITSELF = "itself"
NONE_YET = "no KV canary has come yet"


class Canary:
    """Of one incarnation; tries until it has come."""

    def __init__(
        self,
        own: WorkerEntry,
        registry: WorkerRegistry,
        transport: KVTransport,
        engine: EngineSender,
        vocab_size: int,
        cell_secret: str,
    ) -> None:
        """`own`: with host and port as it listens, which need not be those that others dial."""
        self.awaited = NONE_YET
        """why this worker is not ready; empty once one has come, for good"""
        self._own = own
        self._registry = registry
        self._transport = transport
        self._reservation = Reservation(engine, own.block_size)
        self._vocab_size = vocab_size
        self._cell_secret = cell_secret
        self._session = secrets.token_hex(16)
        self._num_dials = 0

    @property
    def problem(self) -> str:
        """What was wrong when it was last tried; nothing before that."""
        return "" if self.awaited == NONE_YET else self.awaited

    def take(self, event: Event) -> Event:
        """What is left of an event of the engine for others to hear."""
        return self._reservation.take(event)

    async def turn(self) -> None:
        """One round; nothing once a canary has come. StateUnavailableError while Redis is away."""
        if not self.awaited:
            return
        failures: dict[str, str] = {}
        peers = peers_of(self._own, await self._registry.list(self._own.pool))
        if not await self._has_come(peers, failures) and not failures:
            await self._loop_back(failures)
        if self.awaited and failures:
            reason = reason_of(failures, self._transport.ways)
            if reason != self.awaited:
                logger.warning("not ready: %s", reason)
            self.awaited = reason

    async def _has_come(self, peers: list[Peer], failures: dict[str, str]) -> bool:
        """With the first of them that hands over; of others `failures` has what went wrong, but
        not of those that take no part."""
        for peer in peers:
            try:
                async with asyncio.timeout(LIMIT_S):
                    self._note(peer.name, await self._move(peer))
            except NoPartError:
                continue
            except (BatonError, TimeoutError) as error:
                failures[peer.name] = str(error) or f"nothing came within {LIMIT_S:.0f} s"
            else:
                return True
        return False

    async def _loop_back(self, failures: dict[str, str]) -> None:
        if reason := why_not(self._transport):
            logger.info("KV canary: there is no peer to move one with, and %s", reason)
            self.awaited = ""
            return
        own = self._own
        itself = Peer(ITSELF, own.incarnation, own.host, own.port)
        if not await self._has_come([itself], failures) and not failures:
            logger.info(
                "KV canary: there is no peer to move one with, nor does KV come from itself"
            )
            self.awaited = ""

    async def _move(self, peer: Peer) -> Span:
        own = self._own
        work = canary_prompt(own.block_size, own.max_model_len, self._vocab_size)
        ticket = secrets.token_hex(16)
        async with AsyncExitStack() as links:
            here = Peer("this worker", own.incarnation, own.host, own.port)
            ours = await links.enter_async_context(self._linked(here))
            if peer.incarnation == own.incarnation:
                return await loop_back(work, ticket, ours, self._reservation, self._transport)
            theirs = await links.enter_async_context(self._linked(peer))
            prefill, decode = (ours, theirs) if own.role == "prefill" else (theirs, ours)
            return await hand_over(work, ticket, prefill, decode)

    def _linked(self, peer: Peer) -> AbstractAsyncContextManager[AskedWorker]:
        self._num_dials += 1
        hello = Hello(
            "gateway",
            self._own.incarnation,
            self._own.pool,
            to=peer.incarnation,
            session=self._session,
            dial=self._num_dials,
        )
        return AskedWorker.linked(peer, hello, self._cell_secret)

    def _note(self, name: str, transfer: Span) -> None:
        told = transfer.attributes  # a peer of another release may have others
        size, way = told.get(TRANSFER_BYTES), told.get(TRANSFER_TRANSPORT, "a way of its own")
        what = f"{size / 2**20:.3g} MiB" if isinstance(size, int | float) else "KV"
        ms = (transfer.end_ns - transfer.start_ns) / 1e6
        whither = "from" if self._own.role == "decode" else "to"
        logger.info("KV canary: %s %s %s by %s in %.0f ms", what, whither, name, way, ms)
        self.awaited = ""
