"""Owns GPU memory, shows it, and is killed: `python -m tests.gpu.handover.pool_owner FD`."""

import socket
import sys
import time

import torch

from kernels.sharing.shared_memory import SharedMemory
from shared.kv.probe import probe_bytes

NUM_BLOCKS = 64
BLOCK_BYTES = 2**20


def content(block: int) -> int:
    """The word that a block is full of."""
    return 1_000_003 * (block + 1)


def main() -> int:
    torch.cuda.set_device(0)
    num_bytes = NUM_BLOCKS * BLOCK_BYTES
    memory = SharedMemory(num_bytes + probe_bytes(num_bytes))
    words = memory.tensor((NUM_BLOCKS, BLOCK_BYTES // 8), torch.int64)
    words.copy_(torch.tensor([content(block) for block in range(NUM_BLOCKS)])[:, None])
    torch.cuda.synchronize()
    with socket.socket(fileno=int(sys.argv[1])) as sock:
        descriptor = memory.descriptor()
        socket.send_fds(sock, [b"\0"], [descriptor])
        time.sleep(600)
    return 0


if __name__ == "__main__":
    sys.exit(main())
