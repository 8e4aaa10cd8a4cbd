"""Time skinny_linear in CUDA graphs and print one JSON line per cell.

    python3 -m kernels.linear.bench [--model llama-3.1-8b] [--rows 1 16 32 64 128]

A cell is one projection over so many layers of distinct random weights that these exceed four times
the L2 cache, or a whole layer's projections one after the other. Ours does the norm before and the
gate or the residual after as well; the vendor's time is that of torch's product alone, in the same
kind of graph. Results are compared with the torch reference first. `floor` is the time to read the
weights once at MEMORY_GB_PER_S, shares are floor / time. Where the table steps aside there is no
time of ours, and in a layer the vendor's product with our kernels for norm and gate stands there.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
import triton

from kernels.elementwise.rms_norm import rms_norm
from kernels.elementwise.silu_mul import silu_mul
from kernels.launching.graph_time import graph_time_us, need_gpus
from kernels.linear import reference as reference_linear
from kernels.linear.skinny_linear import Norm, skinny_linear
from kernels.linear.skinny_tiles import SkinnyTile, SkinnyWorkspace, skinny_tile

MEMORY_GB_PER_S = 4300
NUM_LAYERS = 16
MAX_ERROR = 6e-3
EPS = 1e-5
ROWS = (1, 16, 32, 64, 128)


@dataclass(frozen=True)
class Projection:
    """One matrix of a model."""

    name: str
    columns: int
    """rows of W"""
    inputs: int
    norm: bool = False
    gated: bool = False

    @property
    def residual(self) -> bool:
        return not self.norm

    @property
    def outputs(self) -> int:
        return self.columns // (1 + self.gated)

    @property
    def floor_us(self) -> float:
        return self.columns * self.inputs * 2 / MEMORY_GB_PER_S / 1e3


def projections(hidden: int, heads: int, wide: int, vocabulary: int) -> tuple[Projection, ...]:
    """Of a Llama or Qwen3 with 8 KV heads of size 128: one layer's, and the head."""
    return (
        Projection("qkv", (heads + 16) * 128, hidden, norm=True),
        Projection("out", hidden, heads * 128),
        Projection("gate_up", 2 * wide, hidden, norm=True, gated=True),
        Projection("down", hidden, wide),
        Projection("lm_head", vocabulary, hidden, norm=True),
    )


MODELS = {
    "llama-3.1-8b": projections(4096, 32, 14336, 128256),
    "qwen3-8b": projections(4096, 32, 12288, 151936),
    "qwen3-0.6b": projections(1024, 16, 3072, 151936),
}


class Layers:
    """Weights of one projection in several layers, and one batch of rows for all."""

    def __init__(self, projection: Projection, num_layers: int, num_rows: int) -> None:
        def draw(*shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_()

        self.projection = projection
        size = (projection.columns, projection.inputs)
        self.weights = [draw(*size).mul_(size[1] ** -0.5) for _ in range(num_layers)]
        self.norm = Norm(1 + draw(projection.inputs) / 4, EPS)
        self.set_rows(num_rows)

    def set_rows(self, num_rows: int) -> None:
        projection, options = self.projection, {"dtype": torch.bfloat16, "device": "cuda"}
        self.x = torch.randn(num_rows, projection.inputs, **options)
        self.residual = torch.randn(num_rows, projection.outputs, **options)
        self.output = torch.empty_like(self.residual)
        self.normed = torch.empty_like(self.x)
        self.product = torch.empty(num_rows, projection.columns, **options)

    def tile(self, overlap: bool = True) -> SkinnyTile | None:
        properties = torch.cuda.get_device_properties(0)
        return skinny_tile(
            len(self.x),
            (self.projection.columns, self.projection.inputs),
            torch.bfloat16,
            gated=self.projection.gated,
            norm=self.projection.norm,
            capability=(properties.major, properties.minor),
            num_multiprocessors=properties.multi_processor_count,
            overlap=overlap,
        )

    def ours(self, layer: int, workspace: SkinnyWorkspace, tile: SkinnyTile) -> None:
        projection = self.projection
        skinny_linear(
            self.x,
            self.weights[layer],
            self.output,
            workspace,
            tile,
            norm=self.norm if projection.norm else None,
            residual=self.residual if projection.residual else None,
            gated=projection.gated,
        )

    def vendors(self, layer: int, fused: bool = False) -> None:
        """torch's product, alone or `fused`: with kernels for what skinny_linear does besides."""
        x, weight = self.x, self.weights[layer].t()
        if not fused:
            torch.mm(x, weight, out=self.product)
        elif self.projection.residual:
            torch.addmm(self.residual, x, weight, out=self.output)
        else:
            rms_norm(x, self.norm.weight, EPS, self.normed, overlap=True)
            gated = self.projection.gated
            torch.mm(self.normed, weight, out=self.product if gated else self.output)
            if gated:
                silu_mul(self.product, self.output, overlap=True)

    def check(self) -> None:
        """The last layer's output against the reference."""
        projection = self.projection
        wanted = reference_linear.linear(
            self.x,
            self.weights[-1],
            norm=self.norm if projection.norm else None,
            residual=self.residual if projection.residual else None,
            gated=projection.gated,
        ).float()
        error = float((self.output.float() - wanted).norm() / wanted.norm())
        if not error <= MAX_ERROR:
            raise ArithmeticError(f"relative error {error:.1e} of {projection}")


def vendors_chain(chain: Sequence[Layers]) -> None:
    for layer in range(len(chain[0].weights)):
        for layers in chain:
            layers.vendors(layer)


def our_chain(
    chain: Sequence[Layers], tiles: Sequence[SkinnyTile | None], workspace: SkinnyWorkspace
) -> None:
    """With the vendor's product, and kernels around it, where there is no tile."""
    for layer in range(len(chain[0].weights)):
        for layers, tile in zip(chain, tiles, strict=True):
            if tile is None:
                layers.vendors(layer, fused=True)
            else:
                layers.ours(layer, workspace, tile)


def projection_cells(model: str, rows: Sequence[int]) -> Iterator[dict[str, object]]:
    cache_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    for projection in MODELS[model]:
        weight_bytes = projection.columns * projection.inputs * 2
        least = 3 if weight_bytes > cache_bytes * 4 else NUM_LAYERS
        layers = Layers(projection, max(-(-4 * cache_bytes // weight_bytes), least), rows[0])
        for num_rows in rows:
            layers.set_rows(num_rows)
            times: dict[str, float | None] = {
                "vendor": graph_time_us(partial(vendors_chain, [layers]))
            }
            times["ours"] = None
            tile = layers.tile()
            if tile is not None:
                layers.output.fill_(float("nan"))
                workspace = SkinnyWorkspace.allocate([tile], "cuda")
                times["ours"] = graph_time_us(partial(our_chain, [layers], [tile], workspace))
                layers.check()
            yield line(model, projection.name, num_rows, [layers], times)


def layer_cells(model: str, rows: Sequence[int]) -> Iterator[dict[str, object]]:
    """Four projections in a row over 16 layers: a decoder layer's kernels without attention. Each
    has rows of its own."""
    chain = [Layers(projection, NUM_LAYERS, rows[0]) for projection in MODELS[model][:4]]
    for num_rows in rows:
        for layers in chain:
            layers.set_rows(num_rows)
        tiles = [layers.tile() for layers in chain]
        plain = [tile and replace(tile, overlap=False) for tile in tiles]
        workspace = SkinnyWorkspace.allocate(tiles, "cuda")
        times: dict[str, float | None] = {
            "vendor": graph_time_us(partial(vendors_chain, chain)),
            "vendor_and_kernels": graph_time_us(
                partial(our_chain, chain, [None] * len(chain), workspace)
            ),
            "ours_without_overlap": graph_time_us(partial(our_chain, chain, plain, workspace)),
            "ours": graph_time_us(partial(our_chain, chain, tiles, workspace)),
        }
        yield line(model, "layer", num_rows, chain, times)


def line(
    model: str, name: str, num_rows: int, chain: Sequence[Layers], times: dict[str, float | None]
) -> dict[str, object]:
    """Of times over all layers."""
    num_layers = len(chain[0].weights)
    floor_us = sum(layers.projection.floor_us for layers in chain)
    ours_us = times["ours"]
    result: dict[str, object] = {
        "kernel": "skinny_linear",
        "gpu": torch.cuda.get_device_name(),
        "versions": f"torch {torch.__version__}, triton {triton.__version__}",
        "model": model,
        "projection": name,
        "rows": num_rows,
        "floor_us": round(floor_us, 2),
        "gb_per_s": ours_us and round(floor_us * num_layers / ours_us * MEMORY_GB_PER_S),
    }
    for key, us in times.items():
        result[f"{key}_us"] = us and round(us / num_layers, 2)
        result[f"{key}_share"] = us and round(floor_us * num_layers / us, 3)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", nargs="+", choices=MODELS, default=["llama-3.1-8b"])
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    arguments = parser.parse_args()
    need_gpus()
    for model in arguments.model:
        for cells in (layer_cells, projection_cells):
            for cell in cells(model, arguments.rows):
                sys.stdout.write(json.dumps(cell) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
