"""How others get at the KV pools of an engine's ranks."""

import os
import socket
from dataclasses import dataclass
from typing import cast, get_args

import torch

from shared.engine.handover.kv_pool import KVPool
from shared.engine.handover.shared_pool import PoolKind
from shared.mover.copies import Copies
from shared.mover.first_tokens import FirstTokens
from shared.mover.host_copies import HostCopies
from shared.mover.host_share_copies import HostShareCopies
from shared.mover.mover import Mover


@dataclass(frozen=True)
class PoolAccess:
    """By default nobody does."""

    kind: PoolKind = "private"
    """of the pools of GPUs"""
    mover_fds: tuple[int, ...] = ()
    """of ranks 1 and up: the sockets that their movers answer at; inherited by their processes"""

    def close(self) -> None:
        """The ranks have their own."""
        for fd in self.mover_fds:
            os.close(fd)


def pool_kind(text: str) -> PoolKind:
    """Of its name. ValueError if it is none."""
    if text not in get_args(PoolKind):
        raise ValueError(f"a pool is one of {get_args(PoolKind)}, not {text!r}")
    return cast(PoolKind, text)


def start_mover(
    sock: socket.socket, kv_pool: KVPool, first_tokens: FirstTokens | None = None
) -> None:
    """What answers the io process at this socket, in threads of this process. Only rank 0 has
    marks: its mover is asked first, and the others wait for no step. `first_tokens`: rank 0's."""
    marks = kv_pool.marks if kv_pool.share.rank == 0 else None
    Mover(sock, copies_of(kv_pool), copies_of(kv_pool), marks, first_tokens).start()


def copies_of(kv_pool: KVPool) -> Copies:
    """What copies blocks where this pool lies."""
    tensor, memory, share = kv_pool.tensor, kv_pool.memory, kv_pool.share
    if memory.holds_blocks:
        return HostCopies(memory)
    if tensor.device.type == "cpu":
        return HostShareCopies(tensor.flatten(1).view(torch.uint8).numpy(), memory, share)
    # A CPU engine must not pay for triton's import.
    from shared.mover.device_copies import DeviceCopies  # noqa: PLC0415

    return DeviceCopies(tensor, memory, share, kv_pool.shared is not None)


def descriptors_of(kv_pool: KVPool) -> list[int]:
    """By which others map the pools of all ranks, in order; none where they map that of
    `kv_pool.memory`, or cannot. The caller closes them."""
    own = kv_pool.descriptor()
    if own is None:
        return []
    if kv_pool.others is None:
        os.close(own)
        return []
    return [own, *map(os.dup, kv_pool.others)]
