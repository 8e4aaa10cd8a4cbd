"""The KV pool shared by two processes: where blocks lie, and that both mappings see one pool."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory

ROOT = Path(__file__).parents[3]
LAYOUT = KVLayout("m", "float32", num_layers=2, planes=2, num_kv_heads=1, head_dim=4, block_size=4)


def test_blocks_do_not_overlap_each_other_or_the_generations() -> None:
    memory = KVMemory.create(LAYOUT, 5)
    assert LAYOUT.block_bytes == 2 * 2 * 4 * 4 * 4
    for block_id in range(5):
        memory.generations[block_id] = 2**64 - 1 - block_id
        memory.block(block_id)[:] = bytes([block_id + 1]) * LAYOUT.block_bytes
    assert list(memory.generations) == [2**64 - 1 - block_id for block_id in range(5)]
    for block_id in range(5):
        assert bytes(memory.block(block_id)) == bytes([block_id + 1]) * LAYOUT.block_bytes


def test_a_new_pool_is_zero() -> None:
    memory = KVMemory.create(LAYOUT, 3)
    assert not any(memory.generations)
    assert not any(bytes(memory.blocks[: 3 * LAYOUT.block_bytes]))


@pytest.mark.parametrize("num_blocks", [1, 511, 512, 513])
def test_the_last_block_is_whole_at_page_borders(num_blocks: int) -> None:
    memory = KVMemory.create(LAYOUT, num_blocks)
    assert len(memory.generations) == num_blocks
    assert len(memory.block(num_blocks - 1)) == LAYOUT.block_bytes


WRITER = """
import sys
from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory
memory = KVMemory(KVLayout("m", "float32", 2, 2, 1, 4, 4), 4, int(sys.argv[1]))
memory.generations[3] += 1
memory.block(3)[:] = bytes([7]) * memory.layout.block_bytes
"""


def test_another_process_writes_the_same_pool() -> None:
    memory = KVMemory.create(LAYOUT, 4)
    subprocess.run(  # noqa: S603
        [sys.executable, "-c", WRITER, str(memory.fd)],
        pass_fds=[memory.fd],
        cwd=ROOT,
        check=True,
        timeout=60,
    )
    assert memory.generations[3] == 1
    assert bytes(memory.block(3)) == b"\7" * LAYOUT.block_bytes


def test_a_second_mapping_of_a_duplicated_descriptor_is_the_same_memory() -> None:
    first = KVMemory.create(LAYOUT, 2)
    second = KVMemory(LAYOUT, 2, os.dup(first.fd))
    second.block(1)[:1] = b"x"
    assert bytes(first.block(1)[:1]) == b"x"


def test_unmapped_pages_keep_their_bytes_and_leave_this_process() -> None:
    layout = KVLayout("m", "float32", 16, 2, 4, 32, 16)
    memory = KVMemory.create(layout, 64)
    memory.blocks[:] = b"\5" * len(memory.blocks)
    mapped = _shared_bytes()
    memory.unmap_pages(range(64))
    assert _shared_bytes() <= mapped - 64 * layout.block_bytes + 2 * 4096
    assert bytes(memory.blocks) == b"\5" * len(memory.blocks)


def _shared_bytes() -> int:
    """Of this process's resident memory, what belongs to shared mappings without a file."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    line = next(line for line in status.splitlines() if line.startswith("RssShmem"))
    return int(line.split()[1]) * 1024
