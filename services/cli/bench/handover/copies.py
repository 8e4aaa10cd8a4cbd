"""Copies between two pools as a mover makes them, next to one copy of as many contiguous bytes.

`python -m services.cli.bench.handover.copies SOURCE DEVICE BLOCK_BYTES GROUP_BYTES MIB[,MIB]`
prints a JSON line per unit and amount. SOURCE and DEVICE: cuda:N each, or cpu.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch

MIB = 2**20
NUM_BACK_TO_BACK = 8
"""batches of the smallest amount, each started while the one before it is copied"""
NUM_RUNS, NUM_WARM = 30, 3

Piece = tuple[int, int, int]
"""destination, source, bytes"""
Batches = Sequence[Sequence[Piece]]


class Pools(NamedTuple):
    """Where the two begin, and how long batches of copies between them take."""

    destination: int
    source: int
    seconds: Callable[[Batches], float]


def main(arguments: Sequence[str]) -> int:
    source, device = arguments[:2]
    block_bytes, group_bytes = map(int, arguments[2:4])
    amounts = [int(amount) * MIB for amount in arguments[4].split(",")]
    pool_bytes = 2 * block_bytes * (max(amounts) // group_bytes + 1)
    make = host_pools if device == "cpu" else device_pools
    pools = make(source, device, pool_bytes)
    sizes = {"blocks": block_bytes, "layer groups": group_bytes}
    if group_bytes == block_bytes:
        del sizes["layer groups"]
    for unit, size in sizes.items():
        for line in measure(pools, block_bytes, size, amounts):
            sys.stdout.write(json.dumps({"unit": unit, **line}) + "\n")
            sys.stdout.flush()
    return 0


def measure(
    pools: Pools, block_bytes: int, piece_bytes: int, amounts: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """A batch of each amount by itself, and the smallest one again and again."""
    for amount, times in [*((amount, 1) for amount in amounts), (min(amounts), NUM_BACK_TO_BACK)]:
        num = max(1, amount // piece_bytes)
        # Every second block, so that no copy takes two.
        offsets = range(0, 2 * num * block_bytes, 2 * block_bytes)
        pieces = [(pools.destination + at, pools.source + at, piece_bytes) for at in offsets]
        whole = (pools.destination, pools.source, num * piece_bytes)
        yield {
            "piece_bytes": piece_bytes,
            "num_bytes": num * piece_bytes,
            "mib": amount // MIB,
            "batches": times,
            "n": NUM_RUNS,
            "gb_per_s": rate(pools, [pieces] * times),
            "contiguous_gb_per_s": rate(pools, [[whole]] * times),
        }


def rate(pools: Pools, batches: Batches) -> float:
    """GB/s, the median of all runs."""
    num_bytes = sum(size for batch in batches for _, _, size in batch)
    times_s = [pools.seconds(batches) for _ in range(NUM_WARM + NUM_RUNS)]
    return num_bytes / median(times_s[NUM_WARM:]) / 1e9


def device_pools(source: str, device: str, num_bytes: int) -> Pools:
    """The source's as another process maps it. From the first copy's start to the last one's end,
    by the device's clock: what the host takes to start copies counts where it delays them."""
    # On a CPU there is no driver to call.
    from kernels.sharing.copy_batch import as_copies, copy_batch  # noqa: PLC0415
    from kernels.sharing.shared_memory import MappedMemory, SharedMemory  # noqa: PLC0415

    torch.cuda.set_device(source)
    theirs = SharedMemory(num_bytes)
    torch.cuda.set_device(device)
    ours, mapped = SharedMemory(num_bytes), MappedMemory(theirs.descriptor(), num_bytes)
    stream = torch.cuda.Stream()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def seconds(batches: Batches) -> float:
        columns = [as_copies(batch) for batch in batches]
        begin.record(stream)
        for copies in columns:
            copy_batch(copies, stream.cuda_stream)
        end.record(stream)
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    return Pools(ours.address, mapped.address, seconds)


def host_pools(source: str, device: str, num_bytes: int) -> Pools:
    """Both in the memory of this process."""
    del source, device
    theirs, ours = (np.full(num_bytes, value, np.uint8) for value in (1, 0))

    def seconds(batches: Batches) -> float:
        start_s = time.perf_counter()
        for batch in batches:
            for to, at, size in batch:
                np.copyto(ours[to : to + size], theirs[at : at + size])
        return time.perf_counter() - start_s

    return Pools(0, 0, seconds)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
