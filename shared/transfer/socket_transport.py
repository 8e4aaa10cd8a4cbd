"""A transport between processes: what is said goes over a socket, whichever way the blocks go.

It owns what an attempt has once: its offer and lease, its account, its readers, its pull. The ways
are parts (`ways`): listeners, where readers connect, and the ways by which this worker pulls.
"""

from collections.abc import Sequence
from functools import partial

from shared.loops import Loops
from shared.protocol import Attempt
from shared.transfer.blocks.progress import Served
from shared.transfer.frame_stream import FrameStream
from shared.transfer.offers import OfferTable
from shared.transfer.pulls import Pulls
from shared.transfer.readers import Readers
from shared.transfer.session import Session
from shared.transfer.terms import Terms
from shared.transfer.transport import Offer, OnRelease, Pulled, PullRequest
from shared.transfer.ways.way import Listener, Ways
from shared.transfer_address import TransferAddress


class SocketTransport:
    """Keeps the promise of `shared.transfer.transport.KVTransport`."""

    def __init__(
        self,
        incarnation: str,
        table: OfferTable,
        listeners: Sequence[Listener],
        ways: Ways,
        terms: Terms,
    ) -> None:
        """`table`: what readers of every listener may read. `ways`: how blocks are pulled."""
        self.ways = ways.names
        self.traffic = terms.traffic
        self.loops = Loops(terms.clock)
        self._incarnation = incarnation
        self._table = table
        self._listeners = listeners
        self._ways = ways
        self._terms = terms
        self._readers = Readers(terms, self._serve)
        self._pulls = Pulls(table.layout, ways, terms)

    @property
    def on_release(self) -> OnRelease:
        return self._table.on_release

    @on_release.setter
    def on_release(self, on_release: OnRelease) -> None:
        self._table.on_release = on_release

    @property
    def address(self) -> TransferAddress:
        """Of its listeners; nowhere before `start`."""
        addresses = [listener.address for listener in self._listeners]
        return TransferAddress(
            port="".join(address.port for address in addresses),
            socket="".join(address.socket for address in addresses),
        )

    async def start(self) -> None:
        """OSError or SettingsError when a listener cannot be opened."""
        for listener in self._listeners:
            sock = listener.open()
            self.loops.start("kv_accept", partial(self._readers.accept, sock, listener))
        self._table.start(self.loops)

    def offer(self, attempt: Attempt, ticket: str) -> Offer:
        return self._table.open(attempt, ticket)

    async def pull(self, request: PullRequest) -> Pulled:
        return await self._pulls.pull(request)

    async def keep(self, request: PullRequest) -> None:
        await self._pulls.keep(request)

    async def close(self) -> None:
        try:
            await self.loops.close()
            await self._pulls.close()
            await self._ways.close()
            await self._readers.close()
        finally:
            self._table.close()
            for listener in self._listeners:
                listener.close()

    async def _serve(self, stream: FrameStream, served: Served) -> None:
        terms = self._terms
        session = Session(
            stream, served, self._incarnation, self._table, terms.traffic, terms.limits
        )
        await session.run()
