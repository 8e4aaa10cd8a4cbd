"""The smallest damage a transfer can do, for tests that must see it."""

from collections.abc import Sequence

import torch

from shared.kv.memory import KVMemory
from shared.transfer.traffic import Traffic
from shared.transfer.transport import KVTransport, Pulled, PullRequest
from shared.transfer_address import TransferAddress


class OneUlpOff:
    """A transport that, once, moves every value of one pulled block to its neighbour."""

    def __init__(self, transport: KVTransport, memory: KVMemory) -> None:
        self._transport = transport
        self._memory = memory
        self._damaged = False
        self.start, self.close, self.offer = transport.start, transport.close, transport.offer
        self.keep, self.loops = transport.keep, transport.loops
        self.on_release = transport.on_release

    @property
    def ways(self) -> Sequence[str]:
        return self._transport.ways

    @property
    def address(self) -> TransferAddress:
        return self._transport.address

    @property
    def traffic(self) -> Traffic:
        return self._transport.traffic

    async def pull(self, request: PullRequest) -> Pulled:
        pulled = await self._transport.pull(request)
        if pulled.run is not None and pulled.num_blocks and not self._damaged:
            self._damaged = True
            block = self._memory.block(request.block_ids[request.num_present_blocks])
            torch.frombuffer(block, dtype=torch.int32).add_(1)
        return pulled
