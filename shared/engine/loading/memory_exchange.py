"""Rank 0 gives the other ranks its host-visible memory, and gets their pools: all are reached
through the io process that talks to rank 0."""

import os
import socket
from collections.abc import Sequence

from shared.engine.handover.kv_pool import KVPool
from shared.kv.memory import KVMemory

_HERE = b"M"


def give_memory(sockets: Sequence[socket.socket], fd: int) -> tuple[int, ...] | None:
    """To every rank but the first; once, before any plan. Descriptors of their pools, in order,
    which are the caller's; None if not all can be mapped. OSError if a rank has ended."""
    pools: list[int] = []
    for sock in sockets:
        socket.send_fds(sock, [_HERE], [fd])
    for sock in sockets:
        said, descriptors, _, _ = socket.recv_fds(sock, len(_HERE), 1)
        if said != _HERE:
            raise ConnectionError("a rank has ended")
        pools += descriptors
    if len(pools) == len(sockets):
        return tuple(pools)
    for pool in pools:
        os.close(pool)
    return None


def take_memory(sock: socket.socket, pool: KVPool) -> None:
    """Use the host-visible memory of rank 0, which has the form of this rank's own, and say how
    the pool is mapped. OSError if rank 0 is gone."""
    own = pool.memory
    _, descriptors, _, _ = socket.recv_fds(sock, len(_HERE), 1)
    if not descriptors:
        raise ConnectionError("rank 0 is gone")
    pool.use(KVMemory(own.layout, own.num_blocks, descriptors[0], len(own.arena)))
    shown = pool.descriptor()
    try:
        socket.send_fds(sock, [_HERE], [] if shown is None else [shown])
    finally:
        if shown is not None:
            os.close(shown)
