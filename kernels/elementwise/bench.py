"""Time the elementwise kernels in CUDA graphs; print one JSON line per cell.

    python3 -m kernels.elementwise.bench [--rows 1 32 128 256 8192]

A graph holds 64 launches or more. Decode-sized rows come from the L2 cache, where the kernel before
leaves them in a step; from 8192 rows on the tensors of two launches exceed four times that cache.
Shapes are Llama-3.1-8B's in bf16, data is random, outputs are compared with the torch reference
first.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import triton

from kernels.elementwise import reference
from kernels.elementwise.rms_norm import rms_norm
from kernels.elementwise.rope_store import rope_store
from kernels.elementwise.silu_mul import silu_mul
from kernels.launching.graph_time import graph_time_us, need_gpus

WIDTH = 4096
INTERMEDIATE = 14336
NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, NUM_LAYERS = 32, 8, 128, 32
BLOCK_SIZE = 16
NUM_POSITIONS = 32768
EPS = 1e-5
MAX_ERROR = 1e-2
NUM_LAUNCHES = 64


@dataclass(frozen=True)
class Cell:
    """One kernel at one shape, once for each set of tensors."""

    name: str
    rows: int
    num_bytes: int
    """read and written by one launch"""
    launches: Sequence[Callable[..., None]]


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda").bfloat16()


def time_us(launches: Sequence[Callable[[], None]]) -> float:
    """Median time of one launch in a graph of at least NUM_LAUNCHES."""
    rounds = -(-NUM_LAUNCHES // len(launches))

    def all_launches() -> None:
        for _ in range(rounds):
            for launch in launches:
                launch()

    return graph_time_us(all_launches) / (rounds * len(launches))


def num_sets(rows: int) -> int:
    """Sets of tensors a graph goes through."""
    return 2 if rows >= 8192 else 4


def norm_cell(rows: int) -> Cell:
    weight = random(WIDTH)
    sets = [(random(rows, WIDTH), random(rows, WIDTH)) for _ in range(num_sets(rows))]
    x, output = (tensor.clone() for tensor in sets[0])
    check(rms_norm, reference.rms_norm, 3, x, weight, EPS, output)
    launches = [partial(rms_norm, x, weight, EPS, output) for x, output in sets]
    return Cell("rms_norm", rows, 2 * rows * WIDTH * 2, launches)


def silu_cell(rows: int) -> Cell:
    sets = [(random(rows, 2 * INTERMEDIATE), random(rows, INTERMEDIATE)) for _ in range(2)]
    check(silu_mul, reference.silu_mul, 1, *sets[0])
    launches = [partial(silu_mul, *pair) for pair in sets]
    return Cell("silu_mul", rows, 3 * rows * INTERMEDIATE * 2, launches)


def rope_cell(rows: int, norm: bool) -> Cell:
    width = (NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM
    num_blocks = 2 * rows // BLOCK_SIZE + 1
    kv_pool = random(num_blocks, 1, 2, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM)
    angles = torch.rand(NUM_POSITIONS, HEAD_DIM // 2, device="cuda") * 7
    qk_norm = random(NUM_HEADS + NUM_KV_HEADS, HEAD_DIM) if norm else None
    launches = []
    for _ in range(num_sets(rows)):
        positions = torch.randint(NUM_POSITIONS, (rows,), device="cuda")
        slots = torch.randperm(num_blocks * BLOCK_SIZE, device="cuda")[:rows]
        tables = (angles.cos(), angles.sin(), positions, slots, kv_pool, 0)
        arguments = (random(rows, width), *tables, random(rows, NUM_HEADS, HEAD_DIM))
        options = {"qk_norm": qk_norm, "eps": EPS}
        launches.append(partial(rope_store, *arguments, **options))
    check(partial(rope_store, **options), partial(reference.rope_store, **options), 7, *arguments)
    return Cell("rope_store norm" if norm else "rope_store", rows, 2 * rows * width * 2, launches)


def chain_cell(rows: int) -> Cell:
    """The elementwise kernels of a layer, in turns."""
    turns = (norm_cell(rows), rope_cell(rows, norm=False), norm_cell(rows), silu_cell(rows))
    return Cell("norm, rope, norm, silu in turns", rows, 0, [each.launches[0] for each in turns])


def check(
    kernel: Callable[..., None], oracle: Callable[..., None], written: int, *arguments: object
) -> None:
    """The tensor at place `written` of the arguments, by kernel and by reference."""
    results = []
    for function in (kernel, oracle):
        own = [item.clone() if isinstance(item, torch.Tensor) else item for item in arguments]
        function(*own)
        results.append(own[written].float())
    error = (results[0] - results[1]).norm() / results[1].norm()
    if not error <= MAX_ERROR:
        raise ArithmeticError(f"relative error {error:.1e} of {kernel}")


def cells(all_rows: Sequence[int]) -> Iterator[Cell]:
    for rows in all_rows:
        yield norm_cell(rows)
        for norm in (False, True):
            yield rope_cell(rows, norm)
        yield silu_cell(rows)
        yield chain_cell(rows)


def copy_gb_per_s() -> float:
    """What torch's copy reaches on this device, read and written."""
    source, target = torch.empty(2, 2**28, dtype=torch.uint8, device="cuda")
    source.random_()
    return 2 * source.numel() / time_us([lambda: target.copy_(source)]) / 1e3  # type: ignore[list-item]


def result(cell: Cell, copy_rate: float) -> dict[str, object]:
    us, plain_us = (
        time_us([partial(launch, overlap=overlap) for launch in cell.launches])
        for overlap in (True, False)
    )
    rate = cell.num_bytes / min(us, plain_us) / 1e3
    return {
        "kernel": cell.name,
        "gpu": torch.cuda.get_device_name(),
        "versions": f"torch {torch.__version__}, triton {triton.__version__}",
        "rows": cell.rows,
        "us": round(us, 2),
        "us_without_overlap": round(plain_us, 2),
        "gb_per_s": round(rate) or None,
        "share_of_copy": round(rate / copy_rate, 3) or None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32, 128, 256, 8192])
    arguments = parser.parse_args()
    need_gpus()
    copy_rate = copy_gb_per_s()
    for cell in cells(arguments.rows):
        sys.stdout.write(json.dumps(result(cell, copy_rate)) + "\n")


if __name__ == "__main__":
    main()
