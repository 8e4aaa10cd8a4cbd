"""Time paged_decode in CUDA graphs and print one JSON line per cell.

    python3 -m kernels.attention.bench_decode [--block-size 16 64] [--spread]

A graph runs 16 layers, each over its own layer of the pool, and repeats that over other blocks
until KV read exceeds four times the L2 cache, so no key is read from it. The plan is made once per
16 layers. KV and queries are random, blocks scattered; outputs are compared with the torch
reference first.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import triton

from kernels.attention import reference
from kernels.attention.decode_plan import DecodePlan
from kernels.attention.decode_tiles import decode_tile
from kernels.attention.paged_decode import paged_decode
from kernels.launching.graph_time import graph_time_us, need_gpus

NUM_LAYERS = 16
NUM_KV_HEADS = 8
GROUP = 4
HEAD_DIM = 128
KEY_BYTES = 2 * NUM_KV_HEADS * HEAD_DIM * 2
"""K and V of one position of one layer in bf16"""
MAX_ERROR = 1e-2
FLASH_ATTENTION_3_US = {
    (1, 1024): 11.4,
    (1, 4096): 13.4,
    (1, 16384): 26.2,
    (8, 1024): 17.2,
    (8, 4096): 41.1,
    (8, 16384): 133.0,
    (32, 1024): 42.6,
}
FLASH_ATTENTION_3_GB_PER_S = {
    (32, 4096): 3768,
    (32, 16384): 4287,
    (128, 1024): 3484,
    (128, 4096): 4223,
    (256, 1024): 3713,
    (256, 4096): 4289,
}
"""the build in vLLM 0.26, measured on an H200 with block size 16 in the same way, the second table
launch by launch"""
UNIFORM = (*FLASH_ATTENTION_3_US, (16, 1024), (64, 1024), (64, 4096), *FLASH_ATTENTION_3_GB_PER_S)
"""(sequences, positions of each)"""
SKEWED = ((8, 4096, 32768), (32, 1024, 16384), (128, 256, 8192))
"""(sequences, positions of all but one, positions of the one)"""


@dataclass(frozen=True)
class Batch:
    """One shape's tensors: several block tables, that no two replays read the same blocks."""

    q: torch.Tensor
    context_lens: torch.Tensor
    block_tables: tuple[torch.Tensor, ...]
    num_keys: int
    """of one layer"""


def flash_attention_3_us(num_rows: int, context: int) -> float | None:
    """Microseconds a layer takes it, or nothing known."""
    if (num_rows, context) in FLASH_ATTENTION_3_US:
        return FLASH_ATTENTION_3_US[num_rows, context]
    if (num_rows, context) in FLASH_ATTENTION_3_GB_PER_S:
        rate = FLASH_ATTENTION_3_GB_PER_S[num_rows, context]
        return num_rows * context * KEY_BYTES / rate / 1e3
    return None


def num_blocks_of(lengths: Sequence[int], block_size: int) -> tuple[int, int]:
    """Blocks of one table, and how many tables exceed four times the L2 cache."""
    cache_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    num_tables = -(-4 * cache_bytes // (sum(lengths) * KEY_BYTES * NUM_LAYERS))
    return sum(-(-length // block_size) for length in lengths), num_tables


def make_batch(lengths: Sequence[int], kv_pool: torch.Tensor) -> Batch:
    """Blocks drawn from all of `kv_pool`."""
    block_size = kv_pool.shape[4]
    num_blocks, num_tables = num_blocks_of(lengths, block_size)
    counts = [-(-length // block_size) for length in lengths]
    chosen = torch.randperm(kv_pool.shape[0], device="cuda").int()
    tables = []
    for number in range(num_tables):
        blocks = chosen[number * num_blocks : (number + 1) * num_blocks].split(counts)
        tables.append(torch.nn.utils.rnn.pad_sequence(blocks, batch_first=True))
    q = torch.randn(len(lengths), NUM_KV_HEADS * GROUP, HEAD_DIM, device="cuda")
    context_lens = torch.tensor(lengths, dtype=torch.int32, device="cuda")
    return Batch(q.bfloat16(), context_lens, tuple(tables), sum(lengths))


def time_us(batch: Batch, kv_pool: torch.Tensor, overlap: bool) -> float:
    """Median time of one layer."""
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    tile = decode_tile(len(batch.q), kv_pool, multiprocessors, overlap)
    plan = DecodePlan.allocate(batch.context_lens, batch.q.shape[1], kv_pool, tile)
    q, output = batch.q.clone(), torch.empty_like(batch.q)

    def layers() -> None:
        for block_tables in batch.block_tables:
            plan.fill()
            q.copy_(batch.q)
            for layer in range(NUM_LAYERS):
                paged_decode(q, kv_pool, layer, block_tables, plan, HEAD_DIM**-0.5, output)

    layers()
    check(batch, kv_pool, output)
    return graph_time_us(layers) / (NUM_LAYERS * len(batch.block_tables))


def check(batch: Batch, kv_pool: torch.Tensor, output: torch.Tensor) -> None:
    """The last layer's output against the reference, first and last rows."""
    for row in {0, len(batch.q) - 1}:
        rows = slice(row, row + 1)
        wanted = reference.paged_decode_attention(
            batch.q[rows],
            kv_pool,
            NUM_LAYERS - 1,
            batch.block_tables[-1][rows],
            batch.context_lens[rows],
            HEAD_DIM**-0.5,
        )
        error = (output[rows] - wanted).float().norm() / wanted.float().norm()
        if not error <= MAX_ERROR:
            raise ArithmeticError(f"relative error {error:.1e} of row {row}")


def cells(block_sizes: Sequence[int], spread: bool) -> Iterator[dict[str, object]]:
    """Results. With `spread` blocks lie all over a pool of 64 GiB, else as close as they can."""
    skewed = [[most] * (rows - 1) + [one] for rows, most, one in SKEWED]
    shapes = [[context] * rows for rows, context in UNIFORM]
    shapes += [
        lengths for pair in skewed for lengths in (pair, [sum(pair) // len(pair)] * len(pair))
    ]
    for block_size in block_sizes:
        most = max(rows * length for rows, length in UNIFORM) // block_size
        shape = (most, NUM_LAYERS, 2, NUM_KV_HEADS, block_size, HEAD_DIM)
        whole = torch.empty(shape, dtype=torch.bfloat16, device="cuda")
        for part in whole.split(512):
            part.normal_()
        for lengths in shapes:
            num_blocks, num_tables = num_blocks_of(lengths, block_size)
            kv_pool = whole if spread else whole[: num_blocks * num_tables]
            batch = make_batch(lengths, kv_pool)
            times = [time_us(batch, kv_pool, overlap) for overlap in (True, False)]
            yield result(lengths, block_size, times)
        del whole, kv_pool


def result(lengths: Sequence[int], block_size: int, times: Sequence[float]) -> dict[str, object]:
    us, plain_us = times
    known = flash_attention_3_us(len(lengths), lengths[0]) if len(set(lengths)) == 1 else None
    return {
        "kernel": "paged_decode",
        "gpu": torch.cuda.get_device_name(),
        "versions": f"torch {torch.__version__}, triton {triton.__version__}",
        "batch": len(lengths),
        "context": sorted(set(lengths)),
        "block_size": block_size,
        "us": round(us, 2),
        "gb_per_s": round(sum(lengths) * KEY_BYTES / us / 1e3),
        "us_without_overlap": round(plain_us, 2),
        "flash_attention_3_us": round(known, 1) if known else None,
        "ratio": round(known / us, 2) if known else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--block-size", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--spread", action="store_true", help="blocks all over a pool of 64 GiB")
    arguments = parser.parse_args()
    need_gpus()
    for line in cells(arguments.block_size, arguments.spread):
        sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
