"""Variants of skinny_linear, every form and option: compile_all.py compiles them."""

from collections.abc import Iterator
from typing import NamedTuple

from triton.experimental.gluon.language import NVMMASharedLayout

from kernels.linear.skinny_hopper import hopper_constants, skinny_hopper_kernel
from kernels.linear.skinny_linear import skinny_linear_kernel
from kernels.linear.skinny_tiles import HOPPER_PANEL, SkinnyTile, column_pieces, skinny_tile
from tests.unit.kernels.variant import CAPABILITIES, DTYPES, Variant, make_source

ROWS = (128, 64, 16)
"""the last for every type"""
HOPPER = 90


class Shape(NamedTuple):
    """One projection."""

    columns: int
    """of the output"""
    inputs: int
    gated: bool
    norm: bool
    """without it, bias and residual"""


SHAPES = (Shape(6144, 4096, False, True), Shape(4096, 4096, False, False))
GATED = Shape(14336, 4096, True, True)
SMALL = Shape(3072, 1024, True, True)


def variants() -> Iterator[Variant]:
    for capability in CAPABILITIES:
        for dtype in DTYPES:
            for num_rows in ROWS if dtype == "bf16" else ROWS[-1:]:
                for shape in (*SHAPES, GATED, SMALL):
                    tile = skinny_tile(
                        num_rows,
                        (shape.columns * (1 + shape.gated), shape.inputs),
                        DTYPES[dtype],
                        gated=shape.gated,
                        norm=shape.norm,
                        capability=(capability // 10, 0),
                        overlap=capability >= HOPPER,
                    )
                    if tile is not None:
                        yield linear_variant(dtype, shape, tile, capability)


def linear_variant(dtype: str, shape: Shape, tile: SkinnyTile, capability: int) -> Variant:
    names = ("bias_ptr", "norm_ptr", "residual_ptr", "output_ptr", "x_ptr", "weight_ptr")
    types = dict.fromkeys(names, f"*{dtype}") | {"eps": "fp32", "arrival_ptr": "*i32"}
    types |= dict.fromkeys(("part_ptr", "square_ptr"), "*fp32")
    constants = {"COLUMNS": shape.columns, "BIAS": not shape.norm, "RESIDUAL": not shape.norm}
    if tile.hopper:
        more, options = hopper_constants(tile, shape.inputs, gated=shape.gated, norm=shape.norm)
        layout = NVMMASharedLayout(2 * HOPPER_PANEL, 16, 2)
        pieces = column_pieces(tile.num_columns // (1 + shape.gated))
        for index, piece in enumerate((*pieces, pieces[0], pieces[0])[:3]):
            types[f"weight_desc{index}"] = f"tensordesc<{dtype}{[piece, HOPPER_PANEL]},{layout!r}>"
        types["x_desc"] = f"tensordesc<{dtype}{[tile.num_rows, HOPPER_PANEL]},{layout!r}>"
        kernel, name = skinny_hopper_kernel, "skinny_hopper"
    else:
        more = {
            "INPUTS": shape.inputs,
            "GATED": shape.gated,
            "NORM": shape.norm,
            "TILE_COLUMNS": tile.num_columns,
            "TILE_INPUTS": tile.num_inputs,
            "TILE_ROWS": tile.num_rows,
            "PRECISION": "ieee" if dtype == "fp32" else "tf32",
            "OVERLAP": tile.overlap,
        }
        options, kernel, name = tile.launch_options, skinny_linear_kernel, "skinny_linear"
    unaligned = ("num_rows", "run")
    source = make_source(kernel, types, constants | more, unaligned, gluon=tile.hopper)
    detail = f"{tile.num_rows} {shape.columns}x{shape.inputs}{' gated' if shape.gated else ''}"
    return Variant(name, dtype, 0, capability, source, options, detail)
