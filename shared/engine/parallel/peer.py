"""Ranks on the GPUs of one host: the sums of decode steps over peer pointers, the rest by NCCL."""

import logging

import torch

from kernels.launching.driver import DriverError
from kernels.peer.inbox import PeerInbox, inbox_bytes
from kernels.peer.memory import PeerMemory
from kernels.peer.reduce import SIZES, peer_reduce
from shared.engine.parallel.distributed import DistributedRanks
from shared.engine.parallel.ranks import Ranks

logger = logging.getLogger(__name__)

MAX_BYTES = {2: 2**22, 4: 2**22, 8: 2**18}
"""of a message, by the number of ranks: up to here it was measured to be faster than NCCL, but for
eight ranks, which were not measured"""


class PeerRanks:
    """See shared.engine.parallel.ranks.Ranks."""

    def __init__(
        self, ranks: Ranks, inbox: PeerInbox, memory: PeerMemory | None, *, overlap: bool
    ) -> None:
        """`ranks`: the same ones, for all but these sums. `memory`: the inbox's, to be given back
        at the end. `overlap`: programmatic dependent launch, from sm_90 on."""
        self.rank = inbox.rank
        self.size = inbox.size
        self._ranks = ranks
        self._inbox = inbox
        self._memory = memory
        self._overlap = overlap
        self._max_bytes = MAX_BYTES[inbox.size]

    def reduce(self, partial: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        num_bytes = partial.numel() * partial.element_size()
        if num_bytes > self._max_bytes or num_bytes % 4:
            return self._ranks.reduce(partial, residual)
        output = torch.empty_like(residual)
        peer_reduce(partial, self._inbox, output, residual, overlap=self._overlap)
        return output

    def gather(self, logits: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        return self._ranks.gather(logits, output)

    def broadcast(self, ids: torch.Tensor) -> torch.Tensor:
        return self._ranks.broadcast(ids)

    def least(self, number: int) -> int:
        return self._ranks.least(number)

    def close(self) -> None:
        torch.cuda.synchronize()  # this rank has got all that the others send: none still writes
        if self._memory is not None:
            self._memory.close()
        self._ranks.close()


def with_peers(ranks: DistributedRanks, device: torch.device) -> Ranks:
    """These ranks, over peer pointers where their number and the devices allow it."""
    if ranks.size not in SIZES:
        return ranks
    inbox = _connect(ranks, device)
    if not ranks.least(int(inbox is not None)):
        return ranks
    assert inbox is not None
    return PeerRanks(ranks, *inbox, overlap=torch.cuda.get_device_capability(device)[0] >= 9)


def _connect(ranks: DistributedRanks, device: torch.device) -> tuple[PeerInbox, PeerMemory] | None:
    """None, and a line in the log, where the driver does not let this rank write to the others;
    the other ranks go on, so every rank makes every call to them."""
    max_bytes = MAX_BYTES[ranks.size]
    memory, handle = None, bytes(64)
    try:
        memory = PeerMemory(inbox_bytes(ranks.size, max_bytes))
        handle = memory.handle
    except (DriverError, OSError) as error:
        logger.warning("no sums over peer pointers: %s", error)
    own = torch.tensor(list(handle), dtype=torch.uint8, device=device)
    handles = [bytes(other.tolist()) for other in ranks.exchange(own)]
    if memory is None:
        return None
    try:
        addresses = [
            memory.address if rank == ranks.rank else memory.open(other)
            for rank, other in enumerate(handles)
        ]
    except DriverError as error:
        logger.warning("no sums over peer pointers: %s", error)
        return None
    return PeerInbox.over(ranks.rank, addresses, max_bytes, device), memory
