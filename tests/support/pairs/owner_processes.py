"""Owners of KV pools in processes of their own, quickly made: forked from one that has imported
everything."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from shared.kv.columns import Words
from shared.kv.digest import BlockDigests
from shared.kv.layer_groups import GroupRange
from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory, Piece
from shared.mover.client import MoverClient, data_socket_pair
from shared.mover.host_copies import HostCopies
from shared.mover.mover import Mover
from shared.protocol import Attempt, TokenRun
from shared.transfer.blocks.copied import ShownPool
from shared.transfer.transport import KVTransport
from shared.transfer.ways.mapped import mapped_transport
from shared.transfer.ways.nccl import nccl_transport
from shared.transfer.ways.nixl import nixl_transport
from shared.transfer.ways.tcp import tcp_transport
from shared.transfer_address import TransferAddress
from tests.support.pairs.transfer_pair import LAYOUT

ROOT = Path(__file__).parents[3]
TICKET = "ticket"
INCARNATION = "p.1"
NUM_EPOCHS = 400


class OwnerProcess(NamedTuple):
    pid: int
    address: TransferAddress


async def kill(owner: OwnerProcess) -> None:
    """Returns once its connections have ended: on busy cores that takes a while."""
    os.kill(owner.pid, signal.SIGKILL)
    async with asyncio.timeout(10):
        while psutil.pid_exists(owner.pid):  # noqa: ASYNC110
            await asyncio.sleep(0.001)


class OwnerProcesses:
    """Makes owners. Each offers its whole pool, sealed, once for every epoch from 0 on."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def make(self, kind: str, folder: Path, block_bytes: int, num_blocks: int) -> OwnerProcess:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{kind} {folder} {block_bytes} {num_blocks}\n")
        self._process.stdin.flush()
        pid, port, path = self._process.stdout.readline().rstrip("\n").split(" ")
        return OwnerProcess(int(pid), TransferAddress(port, path))


@contextlib.contextmanager
def owner_processes() -> Iterator[OwnerProcesses]:
    """They end with the block."""
    with subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    ) as process:
        try:
            yield OwnerProcesses(process)
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def layout_of(block_bytes: int) -> KVLayout:
    if block_bytes == LAYOUT.block_bytes:
        return LAYOUT
    return KVLayout("m", "float32", 1, 2, 1, block_bytes // 128, 16)


def stamp(block_id: int, block_bytes: int) -> bytes:
    """What an owner's block holds."""
    return (block_id + 1).to_bytes(8, "little") * (block_bytes // 8)


class _Digests:
    """The part of a mover that an owner needs."""

    def __init__(self, memory: KVMemory) -> None:
        self._blocks = BlockDigests.of_pool(memory)

    async def digests(self, blocks: list[int], groups: GroupRange, step: int | None) -> Words:
        assert step is None
        return await asyncio.to_thread(self._blocks.of, blocks, groups)


async def _own(kind: str, folder: str, block_bytes: int, num_blocks: int) -> None:
    memory = KVMemory.create(layout_of(block_bytes), num_blocks)
    for block_id in range(num_blocks):
        memory.block(block_id)[:] = stamp(block_id, block_bytes)
    transport: KVTransport
    if kind == "mapped":
        mover = _Digests(memory)
        transport = mapped_transport(ShownPool(memory), INCARNATION, mover, folder=Path(folder))  # type: ignore[arg-type]
    elif kind in ("nixl", "nccl"):
        ours, theirs = data_socket_pair()
        Mover(theirs, HostCopies(memory), HostCopies(memory)).start()
        make = nixl_transport if kind == "nixl" else nccl_transport
        transport = make(memory, INCARNATION, MoverClient(ours))
    else:
        transport = tcp_transport(memory, INCARNATION)
    await transport.start()
    block_ids = tuple(range(num_blocks))
    for epoch in range(NUM_EPOCHS):
        offer = transport.offer(Attempt("rid", epoch), TICKET)
        offer.publish(Piece(0, block_ids, (0,) * num_blocks))
        offer.seal(TokenRun("rid", epoch, 0, (1,)))
    sys.stdout.write(f"{os.getpid()} {transport.address.port} {transport.address.socket}\n")
    sys.stdout.flush()
    await asyncio.sleep(600)


def _main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        kind, folder, block_bytes, num_blocks = line.split()
        if os.fork() == 0:
            asyncio.run(_own(kind, folder, int(block_bytes), int(num_blocks)))


if __name__ == "__main__":
    _main()
