"""GPU memory of one process in another: mapped, copied, and given back when its owner is killed."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path

import numpy as np
import pytest
import torch

from kernels.launching.driver import DriverError
from kernels.sharing.copy_batch import as_copies, copy_batch
from kernels.sharing.shared_memory import MappedMemory, SharedMemory
from shared.errors import CorruptPieceError, PeerLostError
from shared.kv.layer_groups import GroupRange, layer_groups
from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory
from shared.kv.share import KVShare
from shared.mover.client import MoverClient, data_socket_pair
from shared.mover.device_copies import DeviceCopies
from shared.mover.mover import Mover, NoMarks
from shared.protocol import Attempt
from tests.gpu.handover.pool_owner import BLOCK_BYTES, NUM_BLOCKS, content

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[3]
NUM_WORDS = BLOCK_BYTES // 8
NUM_KILLS = 20
NUM_BYTES = NUM_BLOCKS * BLOCK_BYTES
ATTEMPT = Attempt("r", 0)
LAYOUT = KVLayout("four layers", "bfloat16", 4, 2, 8, 128, 64)
GROUPS = layer_groups(LAYOUT)
MEMORY = KVMemory.create(LAYOUT, NUM_BLOCKS, 8 * BLOCK_BYTES)


def in_a_loop(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """A test that needs no plugin of pytest to run a coroutine."""

    @wraps(test)
    def run() -> None:
        async def main() -> None:
            await test()

        asyncio.run(main())

    return run


@contextmanager
def owner() -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    """A process with a pool, and the pool's descriptor."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", "tests.gpu.handover.pool_owner", str(theirs.fileno())],
                cwd=ROOT,
                pass_fds=[theirs.fileno()],
            )
        try:
            _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
            yield process, descriptors[0]
        finally:
            process.kill()
            process.wait()


def pool(num_blocks: int) -> torch.Tensor:
    return torch.zeros(num_blocks, NUM_WORDS, dtype=torch.int64, device="cuda")


def copies_of(ours: torch.Tensor) -> DeviceCopies:
    return DeviceCopies(ours, MEMORY, KVShare(LAYOUT))


def free_bytes() -> int:
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]


def test_memory_is_zero_a_tensor_and_a_descriptor() -> None:
    memory = SharedMemory(5 * 2**20)
    tensor = memory.tensor((5, 2**19), torch.bfloat16)
    assert memory.num_bytes >= 5 * 2**20
    assert tensor.data_ptr() == memory.address
    assert not tensor.any()
    tensor[3] = 2.5
    mapped = MappedMemory(descriptor := memory.descriptor(), memory.num_bytes)
    os.close(descriptor)
    copied = torch.empty(2**19, dtype=torch.bfloat16, device="cuda")
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    copy_batch(
        as_copies([(copied.data_ptr(), mapped.address + 3 * 2**20, 2**20)]), stream.cuda_stream
    )
    stream.synchronize()
    assert bool((copied == 2.5).all())
    mapped.close()
    mapped.close()
    with pytest.raises(ValueError, match="takes"):
        memory.tensor((2**30,), torch.bfloat16)


def test_what_is_no_pool_or_too_small_is_refused() -> None:
    memory = SharedMemory(2**20)
    descriptor = memory.descriptor()
    with pytest.raises(DriverError):
        MappedMemory(descriptor, memory.num_bytes + 2**21)
    os.close(descriptor)
    reader, writer = os.pipe()
    with pytest.raises(DriverError):
        MappedMemory(reader, 2**20)
    os.close(reader)
    os.close(writer)
    memory.close()


@in_a_loop
async def test_a_mover_copies_out_of_another_process() -> None:
    ours = pool(16)
    asks, answers = data_socket_pair()
    mover = Mover(answers, copies_of(ours), copies_of(ours))
    mover.start()
    client = MoverClient(asks)
    with owner() as (_, descriptor):
        await client.map("p.1", NUM_BLOCKS, [descriptor])
        os.close(descriptor)
        source_blocks, blocks = (63, 5, 6, 7, 0), (1, 2, 3, 4, 15)
        digests = await client.fetch(ATTEMPT, "p.1", source_blocks, blocks, GROUPS.all)
        for source_block, block in zip(source_blocks, blocks, strict=True):
            assert bool((ours[block] == content(source_block)).all())
        assert (digests == await client.digests(blocks, GROUPS.all, None)).all()
        assert len(np.unique(digests[:, 1])) == len(blocks)
        assert not ours[5].any()
        middle = GroupRange(1, 1)
        part = await client.fetch(ATTEMPT, "p.1", (8, 9), (6, 7), middle)
        assert (part == await client.digests((6, 7), middle, None)).all()
        words = slice(NUM_WORDS // 4, NUM_WORDS // 2)
        for source_block, block in ((8, 6), (9, 7)):
            assert bool((ours[block, words] == content(source_block)).all())
            assert int(ours[block].count_nonzero()) == NUM_WORDS // 4
        with pytest.raises(CorruptPieceError, match="does not have"):
            await client.fetch(ATTEMPT, "p.1", (NUM_BLOCKS,), (0,), GROUPS.all)
        with pytest.raises(PeerLostError):
            await client.map("p.2", 4 * NUM_BLOCKS, [asks.fileno()])
    client.close()
    mover.join(10)


@in_a_loop
async def test_blocks_go_to_the_arena_and_back() -> None:
    ours = pool(16)
    ours.random_()
    asks, answers = data_socket_pair()
    mover = Mover(answers, copies_of(ours), copies_of(ours))
    mover.start()
    client = MoverClient(asks)
    size = GROUPS.num_bytes(GROUPS.all)
    assert size == BLOCK_BYTES
    room = slice(BLOCK_BYTES, 5 * BLOCK_BYTES)
    await client.stage((3, 1, 4, 15), GROUPS.all, room)
    digests = await client.fill(ATTEMPT, (9, 2, 6, 5), GROUPS.all, room)
    assert bool((ours[[9, 2, 6, 5]] == ours[[3, 1, 4, 15]]).all())
    assert (digests == await client.digests((3, 1, 4, 15), GROUPS.all, None)).all()
    last = GroupRange(2, 1)
    await client.stage((3,), last, slice(0, BLOCK_BYTES // 2))
    ours[0] = 0
    torch.cuda.synchronize()
    await client.fill(ATTEMPT, (0,), last, slice(0, BLOCK_BYTES // 2))
    assert not ours[0, : NUM_WORDS // 2].any()
    assert bool((ours[0, NUM_WORDS // 2 :] == ours[3, NUM_WORDS // 2 :]).all())
    with pytest.raises(CorruptPieceError, match="smaller than"):
        await client.stage((1, 2), GROUPS.all, slice(7 * BLOCK_BYTES, 9 * BLOCK_BYTES))
    client.close()
    mover.join(10)


@in_a_loop
async def test_a_copy_waits_for_the_steps_that_were_started_before() -> None:
    """A step that writes a block late must not overwrite what was fetched into it."""
    ours = pool(4)
    wide = torch.randn(4096, 4096, device="cuda")

    def busy() -> None:
        for _ in range(300):
            torch.mm(wide, wide)
        ours[1] = 7

    busy()
    torch.cuda.synchronize()

    class Marks(NoMarks):
        def of_attempt(self, attempt: Attempt) -> torch.cuda.Event:
            return started

        def of_step(self, step: int, group: int) -> torch.cuda.Event:
            return started

        def num_written(self, step: int, groups: GroupRange) -> int:
            return 0

    asks, answers = data_socket_pair()
    mover = Mover(answers, copies_of(ours), copies_of(ours), Marks())
    mover.start()
    client = MoverClient(asks)
    with owner() as (_, descriptor):
        await client.map("p.1", NUM_BLOCKS, [descriptor])
        os.close(descriptor)
        busy()
        started = torch.cuda.Event()
        started.record()
        await client.fetch(ATTEMPT, "p.1", (9,), (1,), GROUPS.all)
        torch.cuda.synchronize()
        assert bool((ours[1] == content(9)).all())
        busy()
        started.record()
        digests = await client.digests((1,), GROUPS.all, 5)
        assert (digests == await client.digests((1,), GroupRange(0, 1), None)).all()
    client.close()
    mover.join(10)


@pytest.mark.alone  # it counts the device's free memory
@in_a_loop
async def test_a_reader_outlives_its_owners_and_gives_their_memory_back() -> None:
    ours = pool(NUM_BLOCKS)
    asks, answers = data_socket_pair()
    mover = Mover(answers, copies_of(ours), copies_of(ours))
    mover.start()
    client = MoverClient(asks)
    everything = tuple(range(NUM_BLOCKS))
    before = 0
    for kill in range(NUM_KILLS):
        with owner() as (process, descriptor):
            await client.map("p", NUM_BLOCKS, [descriptor])
            os.close(descriptor)
            await client.fetch(ATTEMPT, "p", everything, everything, GROUPS.all)
            process.send_signal(signal.SIGKILL)
            for _ in range(5):
                ours.zero_()
                torch.cuda.synchronize()
                await client.fetch(ATTEMPT, "p", everything, everything, GROUPS.all)
                wanted = torch.tensor([content(block) for block in everything], device="cuda")
                assert bool((ours == wanted[:, None]).all())
            process.wait()
        await client.unmap("p")
        free = free_bytes()
        before = before or free
        assert free >= before - NUM_BYTES // 2, f"after {kill + 1} owners"
    client.close()
    mover.join(10)
