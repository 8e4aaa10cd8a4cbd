"""Times of paged_prefill and of torch's attention over contiguous K and V, one JSON line per cell.

Run from the repository's root: `python3 -m kernels.attention.bench_prefill`. Random inputs, blocks
in random order, every layer of the pool distinct, one CUDA graph over all layers. Attention at full
speed draws more power than an H200 may take for long, so each cell has two rates: `rested`, of a
replay after a pause, and `sustained`, after HEAT_S of the same work. Where torch can compute a
cell, outputs are compared before they are timed.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from kernels.attention.paged_prefill import paged_prefill
from kernels.attention.prefill_plan import PrefillPlan, PrefillTile
from kernels.launching.graph_time import need_gpus

MAX_ERROR = 1e-2
"""relative L2 distance of two bfloat16 results"""
REST_S = 0.25
HEAT_S = 0.35


@dataclass(frozen=True)
class Shape:
    """One cell: sequences that all have the same lengths."""

    name: str
    num_rows: int
    length: int
    num_sequences: int = 1
    window: int = 0
    num_heads: int = 32
    num_kv_heads: int = 8
    head_dim: int = 128
    num_layers: int = 8
    block_sizes: tuple[int, ...] = (16,)

    @property
    def num_flops(self) -> int:
        """Of both products, visible keys only."""
        first = self.length - self.num_rows
        keys = sum(
            min(position + 1, self.window or self.length) for position in range(first, self.length)
        )
        return 4 * self.num_heads * self.head_dim * keys * self.num_sequences


SHAPES = (
    Shape("causal 1k", 1024, 1024, num_layers=16),
    Shape("causal 8k", 8192, 8192, block_sizes=(16, 64, 128)),
    Shape("causal 32k", 32768, 32768, num_layers=2, block_sizes=(16, 64, 128)),
    Shape("chunk 2k over 8k", 2048, 10240, block_sizes=(16, 64, 128, 256)),
    Shape("8 x causal 1k", 1024, 1024, num_sequences=8),
    Shape("causal 32k window 4k", 32768, 32768, window=4096, num_layers=2),
    Shape("causal 8k head 64", 8192, 8192, head_dim=64),
    Shape("causal 8k head 256", 8192, 8192, head_dim=256, num_heads=16),
)


@dataclass(frozen=True)
class Inputs:
    """Arguments of one cell, all layers."""

    q: torch.Tensor
    """[T, num_heads, head_dim], a slice of a fused projection"""
    kv_pool: torch.Tensor
    block_tables: torch.Tensor

    @classmethod
    def random(cls, shape: Shape, block_size: int) -> "Inputs":
        generator = torch.Generator(device="cuda").manual_seed(0)
        width = -(-shape.length // block_size)
        num_blocks = width * shape.num_sequences
        pool_shape = (
            num_blocks, shape.num_layers, 2, shape.num_kv_heads, block_size, shape.head_dim
        )  # fmt: skip
        num_tokens = shape.num_rows * shape.num_sequences
        fused_heads = shape.num_heads + 2 * shape.num_kv_heads
        kwargs = {"device": "cuda", "dtype": torch.bfloat16, "generator": generator}
        fused = torch.randn(num_tokens, fused_heads, shape.head_dim, **kwargs)
        blocks = torch.randperm(num_blocks, generator=generator, device="cuda")
        return cls(
            q=fused[:, : shape.num_heads],
            kv_pool=torch.randn(pool_shape, **kwargs),
            block_tables=blocks.view(shape.num_sequences, width).int(),
        )

    def contiguous_kv(self, layer: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V [S, num_kv_heads, length, head_dim] of one layer."""
        blocks = self.kv_pool[self.block_tables.long(), layer]
        keys, values = blocks.permute(2, 0, 3, 1, 4, 5).flatten(3, 4)[:, :, :, :length]
        return keys.contiguous(), values.contiguous()


def paged_call(
    shape: Shape, inputs: Inputs, tile: PrefillTile | None = None
) -> Callable[[int], torch.Tensor]:
    plan = PrefillPlan.build(
        [shape.num_rows] * shape.num_sequences,
        [shape.length] * shape.num_sequences,
        shape.num_heads,
        inputs.kv_pool,
        shape.window,
        tile,
    )
    output = torch.empty_like(inputs.q)
    scale = shape.head_dim**-0.5

    def call(layer: int) -> torch.Tensor:
        paged_prefill(inputs.q, inputs.kv_pool, layer, inputs.block_tables, plan, scale, output)
        return output

    return call


def torch_call(shape: Shape, inputs: Inputs, backend: SDPBackend) -> Callable[[int], torch.Tensor]:
    """Causal attention of torch, over K and V laid out for it beforehand."""
    q = inputs.q.unflatten(0, (shape.num_sequences, -1)).transpose(1, 2).contiguous()
    planes = [inputs.contiguous_kv(layer, shape.length) for layer in range(shape.num_layers)]

    def call(layer: int) -> torch.Tensor:
        with sdpa_kernel(backend):
            output = scaled_dot_product_attention(
                q, *planes[layer], is_causal=True, enable_gqa=True
            )
        return output.transpose(1, 2).flatten(0, 1)

    return call


def captured(call: Callable[[int], torch.Tensor], num_layers: int) -> torch.cuda.CUDAGraph:
    call(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for layer in range(num_layers):
            call(layer)
    graph.replay()
    return graph


def replay_time_s(graph: torch.cuda.CUDAGraph, num_replays: int) -> float:
    """Of one replay, the mean of `num_replays` in a row."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(num_replays):
        graph.replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / num_replays


def rates(shape: Shape, call: Callable[[int], torch.Tensor], num_rounds: int) -> dict[str, float]:
    """TFLOP/s, the medians of the rounds."""
    graph = captured(call, shape.num_layers)
    rested, sustained = [], []
    for _ in range(num_rounds):
        torch.cuda.synchronize()
        time.sleep(REST_S)
        rested.append(replay_time_s(graph, 1))
        num_replays = max(1, round(HEAT_S / rested[-1]))
        replay_time_s(graph, num_replays)
        sustained.append(replay_time_s(graph, max(1, num_replays // 2)))
    flops = shape.num_flops * shape.num_layers / 1e12
    return {
        "rested": round(flops / statistics.median(rested), 1),
        "sustained": round(flops / statistics.median(sustained), 1),
    }


def bench(shape: Shape, num_rounds: int) -> None:
    """Print the lines of one cell: torch's where it can compute it, then ours."""
    dense = shape.num_rows == shape.length and not shape.window
    for block_size in shape.block_sizes:
        inputs = Inputs.random(shape, block_size)
        call = paged_call(shape, inputs)
        if dense and block_size == shape.block_sizes[0]:
            rival = torch_call(shape, inputs, SDPBackend.CUDNN_ATTENTION)
            error = relative_error(call(0), rival(0))
            if not error < MAX_ERROR:
                raise ValueError(f"{shape.name}: relative error {error} to torch's attention")
            report({"shape": shape.name, "torch": "cuDNN"} | rates(shape, rival, num_rounds))
        report({"shape": shape.name, "block_size": block_size} | rates(shape, call, num_rounds))


def report(line: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def relative_error(one: torch.Tensor, other: torch.Tensor) -> float:
    difference = torch.linalg.vector_norm(one.float() - other.float())
    return float(difference / torch.linalg.vector_norm(other.float()))


def main() -> None:
    parser = argparse.ArgumentParser(description="time of paged_prefill, TFLOP/s")
    parser.add_argument("--num-rounds", type=int, default=3)
    arguments = parser.parse_args()
    need_gpus()
    report({"gpu": torch.cuda.get_device_name(), "torch": torch.__version__})
    for shape in SHAPES:
        bench(shape, arguments.num_rounds)


if __name__ == "__main__":
    main()
