"""Time the sampling kernels in CUDA graphs and print one JSON line per cell.

    python3 -m kernels.sampling.bench [--spread 1 4] [--dtype bfloat16 float32]

A graph samples from as many tensors of logits as exceed four times the L2 cache, so none is read
from it at first; `us_warm` is the same over one tensor, as after a matrix product that has just
written it. Logits are normal with the standard deviation `spread`: 1 is a flat distribution, the
hardest for top-p, 4 has a few likely tokens as a language model's. First and last rows are compared
with the torch reference.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
import triton

from kernels.launching.graph_time import graph_time_us, need_gpus
from kernels.sampling import reference as reference_sampling
from kernels.sampling import rows as fields
from kernels.sampling.choose_tokens import choose_tokens

ROWS = (1, 32, 256)
VOCABULARIES = (128256, 151936)
WAYS = {
    "greedy": (fields.GREEDY, 1.0, 0, 1.0, 0.0),
    "temperature": (fields.PLAIN, 0.8, 0, 1.0, 0.0),
    "top_k 50": (fields.ORDERED, 0.8, 50, 1.0, 0.0),
    "top_p 0.9": (fields.ORDERED, 0.8, 0, 0.9, 0.0),
    "top_k 50, top_p 0.9, min_p 0.05": (fields.ORDERED, 0.8, 50, 0.9, 0.05),
}
"""kind, temperature, top_k, top_p, min_p"""
MAX_LAUNCHES = 300
NUM_CHECKED = 4


def packed(num_rows: int, way: tuple[int, float, int, float, float]) -> torch.Tensor:
    kind, temperature, top_k, top_p, min_p = way
    table = np.zeros((num_rows, fields.FIELDS), dtype=np.int64)
    table[:, fields.KIND] = kind
    table[:, fields.SEED] = np.arange(num_rows)
    table[:, fields.POSITION] = 1000
    table[:, fields.TEMPERATURE] = np.float32(temperature).view(np.int32)
    table[:, fields.TOP_K] = top_k
    table[:, fields.TOP_P] = np.float64(top_p).view(np.int64)
    table[:, fields.LEAST_KEY] = fields.weight_key(int(min_p * 2**40))
    table[:, [fields.ADJUSTED, fields.COUNTS, fields.BIAS]] = -1
    return torch.from_numpy(table.reshape(-1)).cuda()


def time_us(sample: Callable[[torch.Tensor], None], tensors: Sequence[torch.Tensor]) -> float:
    """Median time of one call in a graph over all tensors."""

    def calls() -> None:
        for logits in tensors:
            sample(logits)

    return graph_time_us(calls) / len(tensors)


def cells(spreads: Sequence[float], dtypes: Sequence[torch.dtype]) -> Iterator[dict[str, object]]:
    cache_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    for dtype in dtypes:
        for vocab_size in VOCABULARIES:
            for num_rows in ROWS:
                size = num_rows * vocab_size * dtype.itemsize
                count = min(MAX_LAUNCHES, -(-4 * cache_bytes // size))
                for spread in spreads:
                    normal = torch.randn(count, num_rows, vocab_size, dtype=dtype, device="cuda")
                    tensors = list(normal.mul_(spread))
                    for name, way in WAYS.items():
                        yield cell(tensors, name, way) | {"spread": spread}
                    del normal, tensors


def cell(
    tensors: Sequence[torch.Tensor], name: str, way: tuple[int, float, int, float, float]
) -> dict[str, object]:
    num_rows, vocab_size = tensors[0].shape
    scratch = fields.SamplingScratch.allocate(num_rows, vocab_size, "cuda")
    token_ids = torch.empty(num_rows, dtype=torch.int64, device="cuda")
    rows = None if way[0] == fields.GREEDY else packed(num_rows, way)

    def sample(logits: torch.Tensor, overlap: bool = True) -> None:
        kinds = frozenset({way[0]})
        choose_tokens(logits, rows, kinds, scratch, token_ids, overlap=overlap)

    us = time_us(sample, tensors)
    warm_us = time_us(sample, [tensors[0]] * 20)
    plain_us = time_us(lambda logits: sample(logits, overlap=False), tensors)
    return {
        "kernel": "sampling",
        "gpu": torch.cuda.get_device_name(),
        "versions": f"torch {torch.__version__}, triton {triton.__version__}",
        "way": name,
        "rows": num_rows,
        "vocab": vocab_size,
        "dtype": str(tensors[0].dtype),
        "us": round(us, 1),
        "us_warm": round(warm_us, 1),
        "us_without_overlap": round(plain_us, 1),
        "wrong": num_wrong(tensors[-1], rows, token_ids),
    }


def num_wrong(logits: torch.Tensor, rows: torch.Tensor | None, token_ids: torch.Tensor) -> int:
    """Of the first and last rows, those whose token is not the reference's. A draw within some
    1e-6 of a border may be."""
    half = NUM_CHECKED // 2
    checked = sorted(
        {*range(min(half, len(logits))), *range(max(0, len(logits) - half), len(logits))}
    )
    table = None if rows is None else rows.view(-1, fields.FIELDS)[checked].view(-1)
    wanted = torch.empty(len(checked), dtype=torch.int64)
    reference_sampling.choose_tokens(logits[checked], table, wanted)
    return int((wanted != token_ids[checked].cpu()).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--spread", type=float, nargs="+", default=[1.0, 4.0])
    parser.add_argument("--dtype", nargs="+", default=["bfloat16", "float32"])
    arguments = parser.parse_args()
    need_gpus()
    dtypes = [getattr(torch, name) for name in arguments.dtype]
    for line in cells(arguments.spread, dtypes):
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
