"""skinny_linear compiled: every option, type and form, the models' own shapes; graphs of it."""

import dataclasses

import pytest
import torch

from kernels.linear.skinny_linear import Norm, skinny_linear
from kernels.linear.skinny_tiles import SkinnyTile, SkinnyWorkspace, skinny_tile
from tests.support.cases.linear_cases import (
    MAX_ERRORS,
    LinearCase,
    expected,
    linear_inputs,
    multiply,
    relative_error,
)

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
CASES = (
    LinearCase(1, 64, 64),
    LinearCase(16, 1000, 200, bias=True),
    LinearCase(5, 1304, 1032, norm=True, strided=True),
    LinearCase(40, 24, 136, norm=True, bias=True, residual=True),
    LinearCase(2, 96, 96, gated=True),
    LinearCase(64, 700, 520, gated=True, norm=True, bias=True, residual=True, strided=True),
    LinearCase(1, 20000, 264, norm=True),
    LinearCase(3, 17, 65, norm=True),
)
SHAPES = (
    LinearCase(1, 6144, 4096, norm=True),
    LinearCase(1, 4096, 4096, residual=True),
    LinearCase(1, 14336, 4096, norm=True, gated=True),
    LinearCase(1, 4096, 14336, residual=True),
    LinearCase(1, 128256, 4096, norm=True),
    LinearCase(1, 4096, 1024, norm=True),
    LinearCase(1, 1024, 2048, residual=True),
    LinearCase(1, 3072, 1024, norm=True, gated=True),
    LinearCase(1, 151936, 1024, norm=True),
)
ROWS = (1, 7, 16, 17, 32, 64, 128, 256)
HOPPER, PORTABLE = (9, 0), (8, 0)


def tile_of(
    case: LinearCase,
    dtype: torch.dtype,
    capability: tuple[int, int] = PORTABLE,
    overlap: bool = False,
) -> SkinnyTile | None:
    return skinny_tile(
        case.rows,
        (case.columns * (1 + case.gated), case.inputs),
        dtype,
        gated=case.gated,
        capability=capability,
        overlap=overlap,
    )


def on_hopper() -> bool:
    return torch.cuda.get_device_capability() == HOPPER


@pytest.mark.parametrize("capability", [PORTABLE, HOPPER], ids=["portable", "hopper"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_output_equals_the_references(
    case: LinearCase, dtype: torch.dtype, capability: tuple[int, int]
) -> None:
    inputs = linear_inputs(case, dtype, "cuda")
    tile = tile_of(case, dtype, capability)
    if tile is None or (tile.hopper and not on_hopper()):
        return
    assert relative_error(multiply(case, inputs, tile), expected(case, inputs)) <= MAX_ERRORS[dtype]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("case", SHAPES, ids=lambda case: f"{case.columns}x{case.inputs}")
def test_the_models_shapes(case: LinearCase, rows: int) -> None:
    """With the tile the table names for this device, if it names one."""
    case = dataclasses.replace(case, rows=rows)
    tile = tile_of(case, torch.bfloat16, torch.cuda.get_device_capability())
    if tile is not None:
        inputs = linear_inputs(case, torch.bfloat16, "cuda")
        assert relative_error(multiply(case, inputs, tile), expected(case, inputs)) <= 1e-2


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_wrong_weight_is_found(dtype: torch.dtype) -> None:
    case = LinearCase(4, 96, 512, norm=True, residual=True)
    inputs = linear_inputs(case, dtype, "cuda")
    wanted = expected(case, inputs)
    inputs.weight[95, 511] += 8
    tile = tile_of(case, dtype, torch.cuda.get_device_capability())
    assert tile is not None
    assert relative_error(multiply(case, inputs, tile), wanted) > MAX_ERRORS[dtype]


@pytest.mark.parametrize("capability", [PORTABLE, HOPPER], ids=["portable", "hopper"])
@pytest.mark.parametrize("case", [SHAPES[2], SHAPES[3]], ids=["gate_up", "down"])
def test_a_row_depends_on_itself_only(case: LinearCase, capability: tuple[int, int]) -> None:
    case = dataclasses.replace(case, rows=13)
    inputs = linear_inputs(case, torch.bfloat16, "cuda")
    tile = tile_of(case, torch.bfloat16, capability)
    if tile is None or (tile.hopper and not on_hopper()):
        return
    first = multiply(case, inputs, tile).clone()
    for _ in range(5):
        assert torch.equal(multiply(case, inputs, tile), first)
    inputs.x[1:] = inputs.x[1:].flip(0) * 2
    again = multiply(case, inputs, tile)
    assert torch.equal(again[0], first[0])
    assert not torch.equal(again[1:], first[1:])


def _layer(hidden: int, wide: int, rows: int) -> list[LinearCase]:
    return [
        LinearCase(rows, 2 * hidden, hidden, norm=True),
        LinearCase(rows, hidden, 2 * hidden, residual=True),
        LinearCase(rows, wide, hidden, norm=True, gated=True),
        LinearCase(rows, hidden, wide, residual=True),
    ]


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])
@pytest.mark.parametrize("rows", [1, 16, 24])
def test_a_graph_of_layers_equals_eager_calls(rows: int, overlap: bool) -> None:
    """Bit for bit, again and again: each kernel reads what the one before it writes, in place."""
    overlap = overlap and torch.cuda.get_device_capability() >= HOPPER
    cases = _layer(1024, 3072, rows)
    capability = torch.cuda.get_device_capability()
    tiles = [tile_of(case, torch.bfloat16, capability, overlap) for case in cases]
    eager = [tile_of(case, torch.bfloat16, capability) for case in cases]
    workspace = SkinnyWorkspace.allocate([*tiles, *eager], "cuda")
    layers = [
        [linear_inputs(case, torch.bfloat16, "cuda", seed=seed) for case in cases]
        for seed in range(6)
    ]
    start = torch.randn(rows, 1024, device="cuda").bfloat16()
    hidden = torch.empty_like(start)

    def run(tiles: list[SkinnyTile | None]) -> None:
        hidden.copy_(start)
        for qkv, out, gate_up, down in layers:
            rows_in = [hidden, qkv.output, hidden, gate_up.output]
            outputs = [qkv.output, hidden, gate_up.output, hidden]
            for index, item in enumerate((qkv, out, gate_up, down)):
                tile = tiles[index]
                assert tile is not None
                skinny_linear(
                    rows_in[index],
                    item.weight,
                    outputs[index],
                    workspace,
                    tile,
                    norm=item.norm,
                    residual=hidden if cases[index].residual else None,
                    gated=cases[index].gated,
                )

    run(eager)
    wanted = hidden.clone()
    run(tiles)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(tiles)
    for _ in range(30):
        hidden.fill_(float("nan"))
        graph.replay()
        assert torch.equal(hidden, wanted)
    assert wanted.isfinite().all()


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_nothing_is_allocated_and_nothing_waits() -> None:
    case = LinearCase(8, 4096, 4096, norm=True)
    inputs = linear_inputs(case, torch.bfloat16, "cuda")
    tile = tile_of(case, torch.bfloat16, torch.cuda.get_device_capability())
    assert tile is not None
    workspace = SkinnyWorkspace.allocate([tile], "cuda")

    def step() -> None:
        norm = inputs.norm
        assert isinstance(norm, Norm)
        skinny_linear(inputs.x, inputs.weight, inputs.output, workspace, tile, norm=norm)

    step()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
